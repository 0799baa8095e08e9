"""`dse show`: what the catalogue and the models hold, with sources."""

from __future__ import annotations

from typing import Any

from search.cli.parse import Output, Whole

SCHEMA = "ridge-dse/show/1"
KINDS = ("chip", "node", "cluster", "model")


def show(
    kind: str,
    name: str | None = None,
    /,
    *,
    chips: Whole | None = None,
    output: Output = Output(),  # noqa: B008 - frozen, cyclopts' way to share flags
) -> int:
    """Print a chip, node, cluster or model with its sources; list the known ones without NAME.

    Parameters
    ----------
    kind
        chip, node, cluster or model.
    name
        A name or alias (case, dash, dot and underscore do not matter), or the path of a file.
    chips
        Devices of the cluster or node shown.
    """
    from hwmodels.errors import ConfigError
    from search.cli.output import deliver, refuse_existing

    refuse_existing(output.output, flag="--output", force=output.force)
    if kind not in KINDS:
        from difflib import get_close_matches

        near = get_close_matches(kind, KINDS, n=1)
        raise ConfigError(
            f"nothing to show of {kind[:80]!r}",
            field="KIND",
            value=kind[:200],
            allowed=list(KINDS),
            hint=f"did you mean {near[0]}?" if near else None,
        )
    data, text = _listed(kind) if name is None else _one(kind, name, chips)
    deliver({**_header(data), **data}, output, text)
    return 0


def _header(data: dict[str, Any]) -> dict[str, Any]:
    import hashlib
    import json

    from dse.evaluation import CALIBRATION
    from hwmodels.version import __version__

    body = json.dumps(data, sort_keys=True, default=str).encode()
    return {
        "schema": SCHEMA,
        "version": __version__,
        "calibration": CALIBRATION,
        "inputs_sha256": hashlib.sha256(body).hexdigest(),
        "seed": 0,
        "warnings": [],
    }


def _listed(kind: str) -> tuple[dict[str, Any], str]:
    import hwmodels
    from dse.workload import list_models

    listing = {
        "chip": lambda: hwmodels.list_chips(),
        "node": lambda: hwmodels.list_nodes(),
        "cluster": lambda: (*hwmodels.list_nodes(), *hwmodels.list_clusters()),
        "model": lambda: list_models(),
    }
    names = sorted(listing[kind]())
    return {"kind": kind, "names": names}, "\n".join(names)


def _one(kind: str, name: str, chips: int | None) -> tuple[dict[str, Any], str]:
    if kind == "model":
        return _model(name)
    from hwmodels import describe
    from hwmodels.errors import ConfigError

    if kind == "chip" and chips is not None:
        raise ConfigError("--chips says nothing of a chip", field="--chips", value=chips)
    data = describe(name, kind, chips)
    return data, _hardware_text(data)


def _hardware_text(data: dict[str, Any]) -> str:
    from search.cli.output import columns

    what = [f"{data['kind']} {data['name']}"]
    if data["aliases"]:
        what.append(f"also called {', '.join(data['aliases'])}")
    if data["kind"] == "chip":
        what.append(f"{data['vendor']} {data['silicon']}".strip())
    else:
        hosts = f"{data['chips_per_node']} a host"
        what.append(f"{data['num_chips']} x {data['chip']}, {hosts}")
    blocks = ["; ".join(what)]
    if "levels" in data:
        levels = [
            (
                level["name"],
                level["kind"],
                level["size"],
                f"{level['bytes_per_s_per_chip_per_dir'] / 1e9:.4g}",
                f"{level['efficiency']:.2f}",
                f"{level['latency_s'] * 1e6:.3g}",
                f"{level['oversubscription']:.3g}",
            )
            for level in data["levels"]
        ]
        headers = ("level", "kind", "size", "GB/s a chip, one way", "efficiency", "us", "oversub.")
        blocks.append(columns(headers, levels, title="Network, innermost first"))
    # one source often states many values: printed once, referred to by number
    sources = list(dict.fromkeys(field["source"] for field in data["fields"] if field["source"]))
    rows = [
        (
            field["field"],
            field["text"],
            field["status"],
            f"[{sources.index(field['source']) + 1}]" if field["source"] else "",
        )
        for field in data["fields"]
    ]
    blocks.append(columns(("field", "value", "status", "source"), rows))
    blocks.append("\n".join(f"[{place + 1}] {text}" for place, text in enumerate(sources)))
    blocks += [f"note: {note}" for note in data["notes"]]
    return "\n\n".join(blocks)


def _model(name: str) -> tuple[dict[str, Any], str]:
    from dse.workload import load_model
    from dse.workload.counts import parameters
    from search.cli.output import columns

    config = load_model(name)
    shape = config.model_dump(mode="json")
    counts = parameters(config)
    data = {"kind": "model", "name": config.name, "params": counts.total, "shape": shape}
    rows = [(key, value) for key, value in shape.items() if key not in ("name", "source")]
    return data, "\n\n".join(
        [
            f"model {config.name}: {counts.total:,} parameters",
            columns(("field", "value"), rows),
            f"source: {config.source or 'the file given'}",
        ]
    )
