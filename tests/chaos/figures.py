"""The figures of a run as lines of text, each with the promises that break if the figure is wrong."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.checker import ENDS, SUCCESS, Notes, Quiet, Span, Trail, recovery
from tests.chaos.crew import POISONED
from tests.chaos.faults import NEVER_TAKEN, Aim, Crash, Faults, Pause
from tests.chaos.nursery import KILLED, Death
from treadle import State

GRACE = 1.0  # seconds by which the slowest recovery may pass the bound: this is no real-time machine
AT_ONCE = 1.0  # seconds after SIGCONT


class Figure(NamedTuple):
    line: str
    problems: Sequence[str] = ()


def of_faults(faults: Faults, aim: Aim) -> list[Figure]:
    """How many kills and pauses there were, and how many of them count."""
    tried = sum(crash.death.ours for crash in faults.crashes)
    producers = sum(death.name.startswith("p") and death.ours for death in faults.deaths)
    kills = f"kills: {faults.kills} counted of {tried} tried; {producers} kills of the producer besides"
    others = ", ".join(f"{n} {why}" for why, n in faults.pauses_by_why.most_common() if why != "counted")
    pauses = f"pauses: {faults.taken_over} counted of {len(faults.pauses)} tried{others and f' ({others})'}"
    missing = [
        f"{pause.name} held {len(pause.held)} jobs and stood still, nobody claimed any of them again"
        for pause in faults.pauses
        if pause.why == NEVER_TAKEN
    ]
    if faults.taken_over < aim.pauses:
        missing.append(f"only {faults.taken_over} of {aim.pauses} pauses in the time given")
    few = f"only {faults.kills} of {aim.kills} kills in the time given"
    return [
        Figure(kills, [few] if faults.kills < aim.kills else []),
        Figure(pauses, missing),
        *([_of_server(faults, aim)] if aim.outages or aim.terminations else []),
    ]


def _of_server(faults: Faults, aim: Aim) -> Figure:
    modes = ", ".join(f"{n} {mode}" for mode, n in sorted(Counter(outage.mode for outage in faults.outages).items()))
    away = sorted(outage.up - outage.down for outage in faults.outages)
    cut, called = faults.terminations, "troubles" if aim.troubles else "restarts"
    problems = []
    if len(away) < aim.outages:
        problems.append(f"only {len(away)} of {aim.outages} {called} in the time given")
    if cut.total() < aim.terminations:
        problems.append(f"only {cut.total()} of {aim.terminations} connections cut in the time given")
    besides = faults.harm or f"{cut.total()} connections terminated, {cut['at work']} of them at work"
    return Figure(
        f"server: {len(away)} {called} ({modes or 'none'}), away for p50 {_part(away, 0.5):.2f} s, max "
        f"{_part(away, 1.0):.2f} s; {besides}",
        problems,
    )


def of_jobs(trails: Mapping[str, Trail], notes: Notes) -> Figure:
    states = Counter(each.job.state.value for each in trails.values())
    ends = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    attempts = sum(each.job.attempt for each in trails.values())
    return Figure(f"jobs: {len(trails)} ({ends}), {len(notes.acknowledged)} acknowledged, {attempts} attempts")


def of_recovery(trails: Mapping[str, Trail], faults: Faults, lease: float, bound: float) -> Figure:
    """How soon the jobs of dead and frozen workers were claimed again.

    Asserted: nearly all (p99) within the bound, every one within the bound and a grace. Around an outage the bound
    counts from when holders have had their chance to renew (checker.Quiet).
    """
    quiet = [Quiet(outage.down, outage.up + lease / 2) for outage in faults.outages]
    left_behind = [job for crash in faults.crashes for job in crash.held]
    for pause in faults.pauses:
        taken = {job.id for job in pause.taken}
        left_behind += [job for job in pause.held if job.id in taken]
    answers = [recovery(trails, job, quiet) for job in left_behind]
    problems = [answer for answer in answers if isinstance(answer, str)]
    times = sorted(answer for answer in answers if not isinstance(answer, str))
    p50, p99, slowest = (_part(times, share) for share in (0.5, 0.99, 1.0))
    late = sum(seconds > bound for seconds in times)
    if p99 > bound:
        problems.append(f"p99 of recovery is {p99:.2f} s past the lease; the bound is {bound:g} s")
    if slowest > bound + GRACE:
        problems.append(f"a recovery took {slowest:.2f} s past the lease; the limit is {bound + GRACE:g} s")
    line = (
        f"recovery: {len(times)} jobs of dead and frozen workers claimed again, from lease end: p50 {p50:.2f} s, "
        f"p99 {p99:.2f} s (bound {bound:g} s), max {slowest:.2f} s (limit {bound + GRACE:g} s); "
        f"{late} over {bound:g} s"
    )
    if quiet:
        plain = [recovery(trails, job) for job in left_behind]
        moved = sum(one != other for one, other in zip(plain, answers, strict=True))
        line += f"; {moved} met an absent server and count from {lease / 2:g} s after it"
    return Figure(line, problems)


def of_leases(trails: Mapping[str, Trail], faults: Faults, lease: float) -> Figure:
    """How many leases ran out, and how many of workers that were neither dead nor frozen: a measure, not a promise."""
    died = {death.name: death.at for death in faults.deaths}
    stood: dict[str, list[Pause]] = defaultdict(list)
    for pause in faults.pauses:
        stood[pause.name].append(pause)

    def excused(span: Span) -> bool:
        since, until = span.claim.at.timestamp(), span.end.at.timestamp() if span.end else math.inf
        pauses = stood[span.holder]
        return died.get(span.holder, math.inf) < until or any(
            pause.frozen_at < until and pause.resumed_at > since for pause in pauses
        )

    def around_an_outage(span: Span) -> bool:
        end = span.end.at.timestamp() if span.end else math.inf
        return any(outage.down < end < outage.up + 2 * lease for outage in faults.outages)

    crashed = [span for each in trails.values() for span in each.spans if span.crashed(each.job)]
    healthy = [span for span in crashed if not excused(span)]
    line = f"leases: {len(crashed)} ran out and were recovered, {len(healthy)} of them of healthy workers"
    if faults.outages:
        line += f", {sum(map(around_an_outage, healthy))} of these soon after the server was away"
    return Figure(line)


def of_zombies(notes: Notes, folder: Path, pauses: Sequence[Pause]) -> Figure:
    """How many late writes were refused: that zombies were really there."""
    refused: dict[str, list[float]] = defaultdict(list)
    settles = extends = reapers = 0
    for process, (_, at, _, _, _, _, fence, outcome) in notes.settles:
        if (fence, outcome) == ("holder", "lost"):
            settles += 1
            refused[process].append(at)
        reapers += (fence, outcome) == ("recovery", "lost")
    for process, (_, at, _, _, renewal, _) in notes.extends:
        if renewal == "lost":
            extends += 1
            refused[process].append(at)
    counted = [pause for pause in pauses if pause.why == "counted"]
    tried = sum(any(0 <= at - pause.resumed_at < AT_ONCE for at in refused[pause.name]) for pause in counted)
    said = Counter(
        phrase
        for path in folder.glob("*.log")
        for line in path.read_text().splitlines()
        for phrase in ("its outcome was refused", "could not be renewed")
        if phrase in line
    )
    return Figure(
        f"zombies: {settles} settles and {extends} renewals refused by the store, at once after {tried} of "
        f"{len(counted)} pauses; {reapers} late reapers refused; logged: {said['its outcome was refused']} outcomes "
        f"refused, {said['could not be renewed']} attempts given up unasked"
    )


def of_poison(trails: Mapping[str, Trail], crashes: Sequence[Crash]) -> Figure:
    poison = [each.job for each in trails.values() if each.job.task.startswith("poison")]
    exact = sum(job.crashes == job.max_attempts + (job.max_attempts > 1) for job in poison)
    taken = [crash for crash in crashes if not crash.death.ours]
    beside = {job.id for crash in taken for job in crash.held if SUCCESS in ENDS.get(job.task, {SUCCESS})}
    neighbours = [trails[id_].job for id_ in beside if id_ in trails]
    neighbours = [job for job in neighbours if job.max_attempts > 1 and not job.cancel_requested]
    survived = sum(job.state is State.SUCCEEDED for job in neighbours)
    return Figure(
        f"poison: {len(poison)} jobs, {sum(job.state.final for job in poison)} ended, {exact} after exactly "
        f"max_attempts + 1 crashes (the others crashed unstarted too); {len(taken)} processes went with them, and of "
        f"{len(neighbours)} neighbours with a budget {survived} succeeded"
    )


def of_processes(notes: Notes, deaths: Sequence[Death], folder: Path) -> Figure:
    """Whether a process ended or complained although neither the run nor a poison job gave it reason to."""
    problems = [
        f"process {death.name} ended by itself with {death.code}"
        for death in deaths
        if not death.ours and death.code not in (0, POISONED) and not (death.code == KILLED and _poisoned(notes, death))
    ]
    said = (folder / "stderr.txt").read_text()
    if said:
        problems.append(f"a process complained: {said[-2000:]}")
    return Figure(f"processes: {len(deaths)} died, {len(problems)} of them for no reason known", problems)


def _poisoned(notes: Notes, death: Death) -> bool:
    """Whether a poison handler was at work when the process died; its job may have passed on to others by then."""
    at_work = set()
    for what, _, job, attempt, _ in notes.order.get(death.name, ()):
        (at_work.add if what == "start" else at_work.discard)((job, attempt))
    return any(notes.intended[job] == "poison_coroutine" for job, _ in at_work)


def _part(times: Sequence[float], share: float) -> float:
    return times[max(0, math.ceil(len(times) * share) - 1)] if times else 0.0
