"""The process that servers and clients of this study are in; run as `python -m framehaul.studies.network.inside`.

Its first argument says what it is to do, as JSON (`Wanted`); `road` says over what: `namespaces` of its own, a `relay`
where none can be had, or the servers `as it is`, where others run them. It answers in lines of JSON: first what it has
found and measured, then, for every task on a line of its standard input, how a pass of that ended. It ends, and all
that it started, with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers.network import isolate
from framehaul.studies.network.wanted import NAMESPACES, Wanted

if TYPE_CHECKING:
    from framehaul.studies.network.roads import Roads


def main(argument: str) -> None:
    """Serve passes until standard input ends; status 3, with the reason, where there is no such road."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what drivers print is no answer
    wanted = Wanted(**json.loads(argument))
    try:
        if wanted.road == NAMESPACES:
            isolate()  # before anything starts a thread
        from framehaul.studies.network import roads  # which loads what does

        with ExitStack() as stack, asyncio.Runner() as runner:
            _serve(stack.enter_context(roads.opened(wanted)), wanted, runner, answers)
    except (UnavailableError, ServerError) as error:
        print(
            json.dumps({"unavailable": str(error), "fatal": isinstance(error, ServerError)}), file=answers, flush=True
        )


def _serve(roads: Roads, wanted: Wanted, runner: asyncio.Runner, answers: IO[str]) -> None:
    from framehaul.harness.passes import attempt, columns_of
    from framehaul.studies.network.catalog import Task
    from framehaul.studies.network.passes import Passes

    with Passes(roads, wanted.rows, wanted.seed, wanted.frames, wanted.databases) as passes:
        print(json.dumps(roads.found), file=answers, flush=True)
        for line in sys.stdin:
            task = Task(**json.loads(line))
            outcome = attempt(lambda: runner.run(passes.one(task)))  # noqa: B023
            print(json.dumps(columns_of(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
