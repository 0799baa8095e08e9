"""Hypothesis without deadlines: how long an example takes says nothing about what it tests."""

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")
