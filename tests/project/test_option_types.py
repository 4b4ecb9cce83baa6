# SPDX-License-Identifier: Apache-2.0
"""The TypedDicts of options: they are what the declarations say, and have the options that each client takes."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import draw_options
import pytest

import kcodec.client.options as types
from kcodec.client.shared import NOT_FOR_WRITERS
from kcodec.consumer.options import ConsumerConfig
from kcodec.network.options import ClientConfig
from kcodec.options import OptionSet, declaration
from kcodec.producer.options import ProducerConfig
from kcodec.reading.options import ReadTopicConfig
from kcodec.security.option_names import SECURITY_OPTIONS, SecurityConfig
from kcodec.session.options import SessionOwnConfig

CLIENT = ClientConfig.names() | SECURITY_OPTIONS
SESSION = ConsumerConfig.names() | ProducerConfig.names() | SessionOwnConfig.names()


def test_the_typed_dicts_are_what_the_declarations_say() -> None:
    assert draw_options.TARGET.read_text(encoding="utf-8") == draw_options.draw()


def test_an_edited_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = tmp_path / "options.py"
    edited.write_text(draw_options.TARGET.read_text(encoding="utf-8").replace("linger_ms: float", "linger_ms: str"))
    monkeypatch.setattr(draw_options, "TARGET", edited)
    assert draw_options.main(["--check"]) == 1
    assert "run: python tools/draw_options.py" in capsys.readouterr().err
    assert "linger_ms: str" in edited.read_text()
    assert draw_options.main([]) == 0
    assert edited.read_text() == draw_options.draw()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (types.SecurityOptions, SECURITY_OPTIONS),
        (types.ClientOptions, CLIENT),
        (types.ProducerOptions, CLIENT | ProducerConfig.names()),
        (types.WriterOptions, CLIENT | (ProducerConfig.names() - NOT_FOR_WRITERS)),
        (types.ConsumerOptions, CLIENT | ConsumerConfig.names()),
        (types.SessionOptions, CLIENT | SESSION),
        (types.ReadTopicOptions, CLIENT | ReadTopicConfig.names()),
    ],
)
def test_each_has_the_options_of_its_client(kind: Any, names: set[str]) -> None:
    hints = typing.get_type_hints(kind)  # all types can be found, as tools need that read them at run time
    assert hints.keys() == names
    assert kind.__required_keys__ == frozenset()


@pytest.mark.parametrize(
    "kind", [ClientConfig, SecurityConfig, ProducerConfig, ConsumerConfig, ReadTopicConfig, SessionOwnConfig]
)
def test_each_option_is_described_and_its_default_is_in_range(kind: type[OptionSet]) -> None:
    texts: Mapping[str, str] = draw_options.descriptions(kind)
    for name, field in kind.fields().items():
        assert texts[name].endswith("."), name
        declared = declaration(field)
        if declared.minimum is not None and field.default is not None:
            default: Any = field.default
            assert default >= declared.minimum, name
        if declared.choices:
            assert field.default in (*declared.choices, None), name
