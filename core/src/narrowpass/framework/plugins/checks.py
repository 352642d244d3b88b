"""What the hooks of a plugin gave back: each thing checked before anybody uses it.

The contract of a kind is imported where something of that kind is checked: the help calls the hooks
for commands alone, and `narrowpass plugins` none.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from narrowpass.errors import PluginError


def named(hook: str, result: Any) -> Mapping[str, Any]:
    """Return what a hook returned by name.

    Raises:
        PluginError: something that is not of the kind that the hook returns, or has a name that
            pipeline text and the command line cannot have.
    """
    if hook == "narrowpass_pipelines":
        if not isinstance(result, Mapping):
            raise PluginError(f"{hook} must return a mapping of names to pipeline text")
        texts = dict(result)
        for name, text in texts.items():
            check_pipeline(name, text)
        return texts
    if isinstance(result, str | bytes | Mapping) or not hasattr(result, "__iter__"):
        raise PluginError(f"{hook} must return a list, not {result!r}")
    found: dict[str, Any] = {}
    for item in result:
        _CHECKS[hook](item)
        if item.name in found:
            raise PluginError(f"{hook} returns two things called {item.name!r}")
        found[item.name] = item
    return found


def check_pipeline(name: object, text: object) -> None:
    """Check a named pipeline; its text is parsed when it is first used.

    Raises:
        PluginError: a name that pipeline text cannot have, or no text.
    """
    _check_name(name, "a named pipeline")
    if not isinstance(text, str):
        raise PluginError(
            f"the pipeline {name!r} is {text!r}, and must be text, such as 'ONE,OTHER'"
        )


def _check_name(name: object, what: str) -> None:
    """Check a name against the grammar of pipeline text, which all names share."""
    from narrowpass.framework.pipeline_text import is_name

    if not isinstance(name, str) or not name:
        raise PluginError(f"{what} has no name")
    if not is_name(name):
        raise PluginError(
            f"{what} has the name {name!r}: a name has neither white space nor control characters, "
            'nor any of , [ ] { } = "'
        )


def _check_type(item: Any, base: type) -> None:
    if not (isinstance(item, type) and issubclass(item, base)):
        raise PluginError(f"{item!r} is not a subclass of narrowpass.{base.__name__}")
    _check_name(getattr(item, "name", None), repr(item))
    _check_options(item)


def _check_options(cls: Any) -> None:
    """Check that the options of a pass, an instrument or a backend can be listed, and set."""
    from narrowpass.framework.docstrings import attribute_notes
    from narrowpass.framework.options import default_text, describe_type, option_types

    own = inspect.get_annotations(cls)
    plain = [name for name, hint in own.items() if "ClassVar" not in str(hint)]
    if plain and "__dataclass_params__" not in vars(cls):
        raise PluginError(
            f"{cls.__name__} has the option {plain[0]!r} and no decorator; mark the class with "
            "@dataclass(frozen=True)"
        )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise PluginError(f"{cls.__name__} does not implement {missing}")
    for hint in option_types(cls).values():
        describe_type(hint)
    for field in dataclasses.fields(cls):
        default_text(field)
    attribute_notes(cls)


def _check_instance(item: Any, base: type) -> None:
    if not isinstance(item, base):
        raise PluginError(f"{item!r} is not an instance of narrowpass.{base.__name__}")
    _check_name(getattr(item, "name", None), repr(item))


def _check_pass(item: Any) -> None:
    from narrowpass.framework.passes import Pass

    _check_type(item, Pass)
    if not item.__dataclass_params__.frozen:
        raise PluginError(f"{item.__name__} must be a frozen dataclass: @dataclass(frozen=True)")
    for field in ("requires", "forbids"):
        names = getattr(item, field)
        if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
            raise PluginError(
                f"{item.__name__}.{field} is {names!r}, and must be a tuple of names of passes"
            )
    if not isinstance(item.serves, Mapping) or not all(
        isinstance(text, str) for pair in item.serves.items() for text in pair
    ):
        raise PluginError(
            f"{item.__name__}.serves is {item.serves!r}, and must be a mapping of requests to "
            "text of options"
        )


def _check_instrument(item: Any) -> None:
    from narrowpass.framework.instruments import Instrument

    _check_type(item, Instrument)


def _check_backend(item: Any) -> None:
    from narrowpass.framework.options import format_options
    from narrowpass.runtime.backend import Backend

    _check_instance(item, Backend)
    if not isinstance(item.priority, numbers.Real):
        raise PluginError(f"the priority of backend {item.name!r} is {item.priority!r}, no number")
    _check_options(type(item))
    text = format_options(item)
    if text != item.name:
        raise PluginError(
            f"backend {item.name!r} is registered as {text!r}: register it with its default "
            "options, which each field of the class must have"
        )


def _check_classifier(item: Any) -> None:
    from narrowpass.framework.classify import TARGET, OpClassifier

    _check_instance(item, OpClassifier)
    if item.name == TARGET:
        raise PluginError(f"a classifier cannot be called {TARGET!r}: that is the target's own")
    if "+" in item.name:
        raise PluginError(
            f"a classifier cannot be called {item.name!r}: in classifier=a+b, '+' joins names"
        )


def _check_command(item: Any) -> None:
    import click

    name = getattr(item, "name", None)
    _check_name(name, repr(item))
    if not isinstance(item, click.Command):
        raise PluginError(f"{item!r} is not a click.Command")
    if str(name).startswith("-"):
        raise PluginError(f"a command cannot be called {name!r}: that would be an option")
    item.get_short_help_str()  # the list of commands shows it


def _check_candidate(item: Any) -> None:
    from narrowpass.framework.context import Candidate

    _check_instance(item, Candidate)


def _check_importer(item: Any) -> None:
    from narrowpass_ir.importing import Importer

    _check_instance(item, Importer)


def _check_report_writer(item: Any) -> None:
    from narrowpass.framework.reports import ReportWriter

    _check_instance(item, ReportWriter)


_CHECKS: Mapping[str, Callable[[Any], None]] = MappingProxyType(
    {
        "narrowpass_passes": _check_pass,
        "narrowpass_instruments": _check_instrument,
        "narrowpass_classifiers": _check_classifier,
        "narrowpass_backends": _check_backend,
        "narrowpass_commands": _check_command,
        "narrowpass_candidates": _check_candidate,
        "narrowpass_importers": _check_importer,
        "narrowpass_reports": _check_report_writer,
    }
)
