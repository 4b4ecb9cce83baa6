# SPDX-License-Identifier: Apache-2.0
"""Messages as Python objects: values, defaults, repr, pickle; and that secrets stay secret."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest
from declared_messages import Leaf, TreeRequest, tree

from kcodec.errors import EncodeError
from kcodec.protocol.schema import Request, data, int32, string


def test_objects_are_values() -> None:
    message, same = tree(), tree()
    assert message == same
    assert message != tree(count=1)
    assert message != Leaf()
    assert copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message
    with pytest.raises(TypeError, match="unhashable"):
        hash(message)
    with pytest.raises(AttributeError):
        message.nothing = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="Leaf has no field 'indx'; it has index, name"):
        Leaf(indx=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Leaf(1)  # type: ignore[call-arg]
    assert repr(Leaf(index=1)) == "Leaf(index=1, name=None)"
    assert "content=<5000 bytes: b'" in repr(tree(content=bytes(5000)))
    assert "numbers=[0, 0, 0, 0, 0, 0, 0, 0, ... 92 more]" in repr(tree(numbers=[0] * 100))


def test_defaults_are_not_shared() -> None:
    one, other = TreeRequest(), TreeRequest()
    one.words.append("a")
    one.extra.index = 4
    assert (other.words, other.extra.index, TreeRequest().extra.index) == ([], 0, 0)
    read = TreeRequest.decode(TreeRequest().encode(0), 0)
    read.extra.index = 5
    assert TreeRequest.decode(TreeRequest().encode(0), 0).extra.index == 0


def test_a_slot_that_was_deleted() -> None:
    message = tree()
    del message.branches
    with pytest.raises(EncodeError, match="branches is not set"):
        message.encode(0)
    assert "branches=None" in repr(message)


class LoginRequest(Request, key=36, versions="0"):
    user: str = string("0+")
    password: str = string("0+", secret=True)
    token: bytes = data("0+", secret=True)
    number: int = int32("0+", secret=True)


def test_a_secret_is_in_no_repr_pickle_or_error() -> None:
    message = LoginRequest(user="me", password="hunter2", token=b"hunter3")
    assert repr(message) == "LoginRequest(user='me', password=<hidden>, token=<hidden>, number=<hidden>)"
    assert LoginRequest.decode(message.encode(0), 0) == message
    with pytest.raises(TypeError, match="password is a secret"):
        pickle.dumps(message)
    for wrong in ({"password": "hunter2\ud800"}, {"token": "hunter2"}, {"number": "hunter2"}, {"password": b"hunter2"}):
        try:
            LoginRequest(**wrong).encode(0)
        except EncodeError as error:
            reported = "".join(traceback.format_exception(error)) + repr(error.value) + str(error)
            assert error.__context__ is None
            assert "hunter2" not in reported.replace(repr(wrong), "")
        else:
            raise AssertionError(wrong)
