"""Where a study is kept: an Optuna journal file, written a batch at a time, or a database by URL.

Each batch is one write that ends with a marker. What follows the last marker of a file (a batch
that was being written when the process died, a torn line) is cut off when the study is opened
again, so that a resumed study goes on from whole batches. Trials are ordinary Optuna trials:
`optuna-dashboard NAME.journal` shows them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from optuna.storages.journal import BaseJournalBackend

from hwmodels.errors import ConfigError
from search.samplers import quiet_optuna

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

SCHEMA = 1
ATTRIBUTE = "dse:"
MARKER = f"{ATTRIBUTE}batches"
TRIALS = f"{ATTRIBUTE}trials"
WAY_OUT = "give the study another --study NAME, or --force to start it anew"


class BatchedJournal(BaseJournalBackend):
    """An Optuna journal whose logs reach the file when told to, all at once.

    One process writes at a time; a lock on the open file tells others.

    Args:
        path: The journal; made if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("ab+")
        except OSError as problem:
            raise ConfigError(
                f"cannot be opened: {problem.strerror}", file=str(path), field="--storage"
            ) from None
        _lock(self._file, path)
        self._file.seek(0)
        try:
            self._logs, kept_bytes = whole_batches(self._file.read(), str(path))
        except ConfigError:
            self.close()
            raise
        self._file.truncate(kept_bytes)
        self._pending: list[bytes] = []

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Logs from a number on, those not yet in the file included."""
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Remember logs until `flush`."""
        for log in logs:
            line = json.dumps(log, separators=(",", ":"))
            self._pending.append(line.encode() + b"\n")
            self._logs.append(json.loads(line))

    def flush(self) -> None:
        """Write what is pending, to the disk."""
        self._file.write(b"".join(self._pending))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._pending.clear()

    def close(self) -> None:
        """Let go of the file and its lock."""
        self._file.close()


def whole_batches(raw: bytes, file: str) -> tuple[list[dict[str, Any]], int]:
    """The logs up to the last marker, and how many bytes they take.

    Raises:
        ConfigError: The file is no journal of a study of ours, or is damaged before its end.
    """
    if not raw:
        return [], 0
    if not raw.startswith(b'{"op_code"'):
        raise ConfigError("is no journal of a study", file=file, field="--storage", hint=WAY_OUT)
    logs: list[dict[str, Any]] = []
    place, whole, whole_bytes = 0, 0, 0
    lines = raw.split(b"\n")
    for number, line in enumerate(lines[:-1]):
        place += len(line) + 1
        try:
            log = json.loads(line)
        except ValueError:
            raise ConfigError(
                "is damaged", file=file, line=number + 1, field="--storage", hint=WAY_OUT
            ) from None
        logs.append(log)
        if MARKER in log.get("user_attr", ()):
            whole, whole_bytes = len(logs), place
    if not whole and any("trial_id" in log or "distributions" in log for log in logs):
        raise ConfigError(
            "is an Optuna journal that this command did not write",
            file=file,
            field="--storage",
            hint=WAY_OUT,
        )
    return logs[:whole], whole_bytes


def _lock(stream: BinaryIO, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows, where nothing else guards the file either
        return
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise ConfigError(
            "another run is writing this study", file=str(path), field="--study"
        ) from None


class Ledger:
    """The trials of one study, kept.

    Args:
        target: A URL (`sqlite:///x.db`, `postgresql+psycopg2://...`), or the path of a journal.
        name: Of the study.
        directions: `maximize` or `minimize`, one an objective.
        identity: What makes it this study: resuming with another is refused.
        restart: Forget a study of that name.

    Attributes:
        trials: What was found on opening; whole batches only.
        batches: How many there are.

    Raises:
        ConfigError: The storage cannot be read or written, holds something else, or a study of
            that name over another space.
    """

    def __init__(
        self,
        target: str,
        name: str,
        directions: Sequence[str],
        identity: Mapping[str, Any],
        *,
        restart: bool = False,
    ) -> None:
        self.target = target
        self._journal: BatchedJournal | None = None
        try:
            with quiet_optuna():
                self._open(target, name, directions, identity, restart=restart)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        target: str,
        name: str,
        directions: Sequence[str],
        identity: Mapping[str, Any],
        *,
        restart: bool,
    ) -> None:
        import optuna
        from optuna.study import StudyDirection

        self._storage = self._opened(target, restart=restart)
        names = [study.study_name for study in optuna.get_all_study_summaries(self._storage)]
        if restart and name in names:
            optuna.delete_study(study_name=name, storage=self._storage)
            names.remove(name)
        if name in names:
            self._study = optuna.load_study(study_name=name, storage=self._storage)
            self._check(identity)
        else:
            if self._journal is not None and names:
                raise ConfigError(
                    f"holds the study {names[0]!r}, not {name!r}",
                    file=target,
                    field="--study",
                    value=name,
                    hint=WAY_OUT,
                )
            self._study = optuna.create_study(
                study_name=name,
                storage=self._storage,
                directions=[StudyDirection[word.upper()] for word in directions],
            )
            self._study.set_user_attr(f"{ATTRIBUTE}schema", SCHEMA)
            for key, value in identity.items():
                self._study.set_user_attr(ATTRIBUTE + key, value)
            self._mark(0, 0)
        attributes = self._study.user_attrs
        self.batches = int(attributes[MARKER])
        stored = self._study.get_trials(deepcopy=False)
        self._stored = len(stored)
        self.trials = stored[: int(attributes[TRIALS])]
        self._count = len(self.trials)

    def _opened(self, target: str, *, restart: bool) -> BaseStorage:
        import optuna

        if "://" in target:
            try:
                return optuna.storages.get_storage(target)
            except Exception as problem:  # whatever the database's driver raises
                reason = str(problem).splitlines()[0]
                raise ConfigError(
                    f"cannot open the storage: {reason}", field="--storage", value=target
                ) from None
        path = Path(target)
        if not path.parent.is_dir():
            raise ConfigError(
                f"cannot write {target!r}: its folder does not exist", field="--storage"
            )
        if restart and path.exists():
            path.unlink()
        self._journal = BatchedJournal(path)
        return optuna.storages.JournalStorage(self._journal)

    def _check(self, identity: Mapping[str, Any]) -> None:
        attributes = self._study.user_attrs
        if attributes.get(f"{ATTRIBUTE}schema") != SCHEMA or MARKER not in attributes:
            raise ConfigError(
                f"the study {self._study.study_name!r} was not written by this version",
                file=self.target,
                field="--study",
                hint=WAY_OUT,
            )
        for key, value in identity.items():
            differs = first_difference(
                attributes.get(ATTRIBUTE + key), json.loads(json.dumps(value)), key
            )
            if differs is not None:
                field, before, now = differs
                raise ConfigError(
                    f"the study {self._study.study_name!r} was begun with another {field}: "
                    f"{_short(before)}, now {_short(now)}",
                    file=self.target,
                    field=field,
                    value=now if isinstance(now, str | int | float) else _short(now),
                    hint=WAY_OUT,
                )

    def append(self, trials: Sequence[FrozenTrial]) -> None:
        """Add a whole batch, in one write.

        Of a database, trials that an interrupted run left behind are not written twice: the batch
        that is run again holds the same.
        """
        fresh = trials[max(0, self._stored - self._count) :]
        self._study.add_trials(fresh)
        self._count += len(trials)
        self._stored = max(self._stored, self._count)
        self.batches += 1
        self._mark(self.batches, self._count)

    def _mark(self, batches: int, trials: int) -> None:
        self._study.set_user_attr(TRIALS, trials)
        self._study.set_user_attr(MARKER, batches)
        if self._journal is not None:
            self._journal.flush()

    def close(self) -> None:
        """Let go of the storage."""
        if self._journal is not None:
            self._journal.close()


def first_difference(before: Any, now: Any, name: str) -> tuple[str, Any, Any] | None:
    """The first dotted field in which two JSON values differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*now, *before)):
            found = first_difference(before.get(key), now.get(key), f"{name}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, pair in enumerate(zip(before, now, strict=True)):
            found = first_difference(*pair, f"{name}[{place}]")
            if found is not None:
                return found
        return None
    return None if before == now else (name, before, now)


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
