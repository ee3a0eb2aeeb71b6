"""Settings of a session that are refused, since to accept them would promise something."""

from __future__ import annotations

import pytest

from penstock.backend.session_settings import SessionSettings
from penstock.errors import FeatureNotSupported


@pytest.mark.parametrize("name", ["role", "session_authorization"])
def test_a_session_has_one_role(name: str) -> None:
    settings = SessionSettings({}, {}, 18)
    with pytest.raises(FeatureNotSupported, match="a session has one role"):
        settings.set(name, "reader")
    settings.set(name, None)


def test_no_role_is_what_it_has() -> None:
    SessionSettings({}, {}, 18).set("role", "none")
