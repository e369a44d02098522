"""A model of a run's commit protocol: commands that stop before each access to the store.

A command is a generator of requests (verb, key, value) and is sent their answers, so that
`tests/commits_histories.py` can interleave, kill and wake commands. Run A has the parts 0-0
(images a, b), 0-1 (c) and 1-0 (d, e); b and d fail at the first try. B is a later run that skips
what A has. E is an export of A. A part is named by its place: 0-1, or r4-0-0 of the retry that
commit 4 announced. Each of the rules can be left out, to see what breaks.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

JOBS = {"A": ({"0-0": "ab", "0-1": "c"}, {"1-0": "de"}), "B": ({"0-0": "acf"},)}
PARTS_A_CHECK = 2  # that a pod makes before it looks again at what is spent

T = TypeVar("T")
Steps = Generator[tuple[Any, ...], Any, T]
Part = Mapping[str, int | None]  # the drawing of each image, None if it failed; also of a page
BURIED: Part = {"nothing": None}


class Refused(Exception):
    """Exit code 2 or 3."""


class TryAgain(Exception):
    """Exit code 75."""


@dataclass(frozen=True, slots=True)
class Row:
    """An image in a manifest. If it is ok, a part holds it."""

    status: Literal["ok", "failed", "forgotten"]
    part: str = ""
    drawing: int | None = None


Shards = dict[int, dict[str, Row]]  # the rows of each


@dataclass(frozen=True, slots=True)
class Forget:
    """Images to take down, and the part with their rows at each place."""

    suffix: str
    images: frozenset[str]
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Commit:
    """A state of a run or, with the last three, of an export."""

    parts: Mapping[str, str] = field(default_factory=dict)  # those that are counted, by place
    manifests: Mapping[int, str] = field(default_factory=dict)  # by shard
    retries: Mapping[int, Mapping[int, str]] = field(default_factory=dict)  # rows, by shard
    pending: Forget | None = None
    forgotten: frozenset[str] = frozenset()
    buried: tuple[str, ...] = ()
    accepts_failures: bool = False
    is_complete: bool = False  # all parts of the plan are counted
    is_ok: bool = False
    is_removed: bool = False
    files: Mapping[str, str] = field(default_factory=dict)  # their images
    announced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # files of earlier commits


@dataclass(slots=True)
class Protocol:
    """The commands, and facts about them that no object tells."""

    rules: frozenset[str]
    budget: int
    minutes: int = 0
    drawings: int = 0
    forgotten: set[str] = field(default_factory=set)  # in no object, as `forget` has returned
    unexported: set[str] = field(default_factory=set)  # in no export, as `export` has returned

    def highest(self, run: str) -> Steps[tuple[int, Commit]]:
        """Return the number and content of the highest commit; -1 before the first."""
        keys = yield "list", f"{run}/commits/"
        return (int(keys[-1][-6:]), (yield "get", keys[-1])) if keys else (-1, Commit())

    def commit(self, run: str, number: int, state: Commit) -> Steps[bool]:
        """Create a commit. False if the number is lost, even to this request, sent twice."""
        while not (yield "create", f"{run}/commits/{number:06d}", state):
            if "start-over" in self.rules:
                return False
            number += 1
        return True

    def named(self, prefix: str, value: object) -> str:
        """Name an object by its digest: two who write it have the same bytes."""
        digest = hashlib.sha256(repr(value).encode()).hexdigest()[:6]
        return f"{prefix}-{digest}" if "digest" in self.rules else prefix

    def read_all(self, keys: Mapping[int, str]) -> Steps[dict[int, Any]]:
        """Read the objects that a plan or a commit names, by shard."""
        objects = {}
        for shard, key in keys.items():
            objects[shard] = yield "get", key
            if objects[shard] is None:
                raise TryAgain(f"{key} is absent")
        return objects

    def read_places(self, run: str, state: Commit) -> Steps[dict[str, tuple[int, str]]]:
        """Return the shard and images of each place, the plan's first, then those of retries."""
        plan = yield "get", f"{run}/plan"
        if state.is_removed or plan is None:
            raise Refused("removed" if state.is_removed else "not planned")
        places: dict[str, tuple[int, str]] = {}
        for keys in (plan, *state.retries.values()):
            for shard, rows in (yield from self.read_all(keys)).items():
                places |= {place: (shard, images) for place, images in rows.items()}
        return places

    def read_rows(self, state: Commit) -> Steps[dict[str, Row]]:
        """Return the rows of all manifests."""
        shards = yield from self.read_all(state.manifests)
        return {image: row for rows in shards.values() for image, row in rows.items()}

    def commit_rows(self, run: str, number: int, state: Commit, rows: Shards) -> Steps[bool]:
        """Write the manifests of shards, then the commit that names them."""
        keys = {shard: self.named(f"{run}/manifest/{shard}", rows[shard]) for shard in rows}
        manifests = {keys[shard]: rows[shard] for shard in rows}
        if "metadata-first" in self.rules:
            yield from create_all(manifests)
        new = replace(state, manifests={**state.manifests, **keys})
        is_won = yield from self.commit(run, number, new)
        if "metadata-first" not in self.rules:
            yield from create_all(manifests)
        return is_won

    def bury(self, keys: Iterable[str]) -> Steps[None]:
        """Overwrite objects by an empty file, also those that are still to be written."""
        for key in keys:
            if (yield "get", key) != BURIED:
                yield "put", key, BURIED

    def plan(self, run: str) -> Steps[None]:
        """Freeze the rows of a run, unless it is planned already."""
        _, state = yield from self.highest(run)
        if state.is_removed:
            raise Refused("removed")
        if (yield "get", f"{run}/plan") is not None:
            return
        _, earlier = yield from self.highest("A" if run == "B" else "none")
        held = set()
        if not earlier.is_removed and (earlier.is_complete or "skip-complete" not in self.rules):
            rows = yield from self.read_rows(earlier)
            held = {image for image in rows if rows[image].status != "failed"}
        keys = {}
        for shard, parts in enumerate(JOBS[run]):
            images = {place: "".join(sorted({*parts[place]} - held)) for place in parts}
            keys[shard] = self.named(f"{run}/shards/{shard}", images)
            yield "create", keys[shard], images
        yield "create", f"{run}/plan", keys

    def generate(self, run: str, process: str, shard: int | None = None) -> Steps[None]:
        """Make the missing parts of a shard or, as a helper, those of all shards from the end."""
        _, state = yield from self.highest(run)
        places = yield from self.read_places(run, state)
        attempt, minutes = f"{run}/attempts/{process}", 0
        if "attempt-first" in self.rules:
            yield "put", attempt, (0, False)
        for place, (owner, images) in list(places.items())[:: -1 if shard is None else 1]:
            part = yield "get", f"{run}/images/{place}"
            assert part in (None, BURIED) or {*part} == {*images}, f"{place} is of another plan"
            if part is not None or shard not in (owner, None):
                continue
            if minutes % PARTS_A_CHECK == 0 and (yield from self.spent(run)) > self.budget:
                raise Refused("the budget is spent")
            yield "create", f"{run}/images/{place}", self.draw(place, images)
            minutes += 1
            yield "put", attempt, (minutes, False)
        yield "put", attempt, (minutes, True)

    def draw(self, place: str, images: str) -> Part:
        """Spend a minute on a part."""
        self.minutes += 1
        part: dict[str, int | None] = {}
        for image in images:
            self.drawings += 1
            fails = image in "bd" and (place[0] != "r" or self.drawings % 3 != 0)
            part[image] = None if fails else self.drawings
        return part

    def spent(self, run: str) -> Steps[int]:
        """Return the minutes of all attempts. One that has not ended may have spent another."""
        minutes = 0
        for key in (yield "list", f"{run}/attempts/"):
            recorded, has_ended = (yield "get", key) or (0, True)
            minutes += recorded + (not has_ended and "unended-minute" in self.rules)
        return minutes

    def aggregate(self, run: str, *, accepts_failures: bool = False) -> Steps[bool]:
        """Count the parts that are there, and write the pages of the highest commit."""
        number, state = yield from self.highest(run)
        places = yield from self.read_places(run, state)
        shards = yield from self.read_all(state.manifests)
        parts, changed = yield from self.count(run, state, places, shards)
        shards |= changed
        rows = {image: row for each in shards.values() for image, row in each.items()}
        accepts_failures |= state.accepts_failures
        is_complete = all(place in parts or place[0] == "r" for place in places)
        is_ok = accepts_failures or all(row.status != "failed" for row in rows.values())
        new = replace(state, parts=parts, is_complete=is_complete, is_ok=is_complete and is_ok)
        new = replace(new, accepts_failures=accepts_failures)
        report = {image: row.drawing for image, row in rows.items()}
        if number < 0 or new != state:
            number += 1
            if "report-last" not in self.rules:
                yield "create", f"{run}/report/{number:06d}", report
            if not (yield from self.commit_rows(run, number, new, changed)):
                return False
        yield "create", f"{run}/report/{number:06d}", report
        if new.is_ok:
            yield "create", f"{run}/_SUCCESS", True
        return True

    def count(
        self, run: str, state: Commit, places: Mapping[str, tuple[int, str]], shards: Shards
    ) -> Steps[tuple[dict[str, str], Shards]]:
        """Return all parts that there are, and the rows of shards with a part that is new."""
        parts, changed = dict(state.parts), Shards()
        for key in (yield "list", f"{run}/images/"):
            place = key.rpartition("/")[2]
            if place not in places or place in parts:
                continue
            part = yield "get", key
            if part is None:
                raise TryAgain("the run is being removed")
            parts[place], (shard, images) = key, places[place]
            changed.setdefault(shard, {**shards.get(shard, {})})
            for image in images:
                row = changed[shard].get(image, Row("failed"))
                changed[shard][image] = Row("ok", key, part[image]) if part.get(image) else row
        return parts, changed

    def preview(self, run: str) -> Steps[None]:
        """Write a page of the first shard."""
        page: dict[str, int | None] = {}
        for key in (yield "list", f"{run}/images/0-"):
            page |= (yield "get", key) or {}
        yield "create", f"{run}/report/preview", page

    def retry(self, run: str) -> Steps[bool]:
        """Announce that failed images are made again, unless an earlier retry is to be made."""
        number, state = yield from self.highest(run)
        places = yield from self.read_places(run, state)
        if state.pending and "retry-refuses" in self.rules:
            raise TryAgain("a forget is to be finished first")
        left = [place for place in places if place not in state.parts]
        if any(place[0] == "r" for place in left) and "resume" in self.rules:
            return True
        shards = yield from self.read_all(state.manifests)
        if "retry-counted" not in self.rules:
            for shard, images in (places[place] for place in left):
                shards[shard] = dict.fromkeys(images, Row("failed")) | shards.get(shard, {})
        keys = {}
        for shard, rows in shards.items():
            images = "".join(sorted(image for image in rows if rows[image].status == "failed"))
            if images:
                prefix = f"r{number + 1}-{shard}"
                keys[shard] = self.named(f"{run}/shards/{prefix}", images)
                yield "create", keys[shard], {f"{prefix}-0": images}
        new = replace(state, retries={**state.retries, number + 1: keys})
        return not keys or (yield from self.commit(run, number + 1, new))

    def forget(self, run: str, images: frozenset[str]) -> Steps[bool]:
        """Take a step towards a run without images; True after the last."""
        number, state = yield from self.highest(run)
        if images <= state.forgotten:
            yield from self.bury(state.buried)
            self.forgotten |= images
            return True
        pending, images = state.pending, images - state.forgotten
        if pending and (images <= pending.images or "finish-pending" in self.rules):
            yield from self.take_down(run, number + 1, state, pending)
            return False
        places = yield from self.read_places(run, state)
        if "forget-complete" in self.rules and any(place not in state.parts for place in places):
            raise Refused("make first what is planned")
        images |= pending.images if pending else frozenset()
        holders = [place for place in state.parts if not images.isdisjoint(places[place][1])]
        sources = {place: state.parts[place] for place in holders}
        if "announce" in self.rules:
            announced = replace(state, pending=Forget(f".f{number + 1}", images, sources))
            yield from self.commit(run, number + 1, announced)
        else:
            suffix = self.named(f".f{number + 1}", sorted(images))
            yield from self.take_down(run, number + 1, state, Forget(suffix, images, sources))
        return False

    def take_down(self, run: str, number: int, state: Commit, pending: Forget) -> Steps[None]:
        """Write parts without the announced images, then count them in place of their sources."""
        shards = yield from self.read_all(state.manifests)
        moved, parts = {}, {}
        for place, source in pending.sources.items():
            part = yield "get", source
            if part in (None, BURIED):
                return  # another process has finished this forget
            moved[source] = f"{run}/images/{place}{pending.suffix}"
            parts[moved[source]] = {i: part[i] for i in part if i not in pending.images}
        if "count-last" in self.rules:
            yield from create_all(parts)
        for shard, rows in shards.items():
            kept = {i: replace(row, part=moved.get(row.part, row.part)) for i, row in rows.items()}
            gone = dict.fromkeys(pending.images & kept.keys(), Row("forgotten"))
            shards[shard] = kept | gone
        counted = {place: moved[source] for place, source in pending.sources.items()}
        earlier = state.buried if "bury-all" in self.rules else ()
        pages = [f"{run}/report/{each:06d}" for each in range(number)] + [f"{run}/report/preview"]
        new = replace(
            state,
            parts={**state.parts, **counted},
            pending=None,
            forgotten=state.forgotten | pending.images,
            buried=(*earlier, *pending.sources.values(), *pages),
        )
        if "bury-last" not in self.rules:
            yield from self.bury(new.buried)
        is_won = yield from self.commit_rows(run, number, new, shards)
        if is_won and "count-last" not in self.rules:
            yield from create_all(parts)

    def gc(self, run: str) -> Steps[None]:
        """Remove a run that is not complete."""
        number, state = yield from self.highest(run)
        if state.is_complete and "gc-unfinished" in self.rules:
            return
        if not state.is_removed and "removed-commit" in self.rules:
            removed = replace(state, is_removed=True)
            if not (yield from self.commit(run, number + 1, removed)):
                raise TryAgain("the run is in use")
        for key in (yield "list", f"{run}/"):
            if "/commits/" not in key:
                yield "delete", key

    def export(self) -> Steps[bool]:
        """Take a step towards an export with each ok image of run A once; True after the last."""
        forgotten = frozenset(self.forgotten)
        number, state = yield from self.highest("E")
        _, source = yield from self.highest("A")
        if "export-own-first" not in self.rules:
            number, state = yield from self.highest("E")
        if not source.is_complete:
            raise Refused("the run is not complete")
        rows = yield from self.read_rows(source)
        parts = {image: row.part for image, row in rows.items() if row.status == "ok"}
        kept = {name: held for name, held in state.files.items() if {*held} <= {*parts}}
        images = sorted({*parts}.difference(*kept.values()))
        if images or len(kept) < len(state.files) or state.announced:
            sources = {image: parts[image] for image in images}
            yield from self.export_file(number + 1, state, kept, sources)
            return False
        yield from self.bury(state.buried)
        for key in state.dropped:
            yield "delete", key
        self.unexported |= forgotten
        return True

    def export_file(
        self, number: int, state: Commit, kept: dict[str, str], sources: dict[str, str]
    ) -> Steps[None]:
        """Announce a file, copy images into it, and count it beside the files that are kept."""
        name = f"E/data/{number}"
        early = None if "export-announce" in self.rules else (yield from copied(sources))
        begun = replace(state, announced=(name,), buried=state.buried + state.announced)
        if not (yield from self.commit("E", number, begun)):
            return
        copies = early or (yield from copied(sources))
        if None in copies.values():
            return  # the run has moved on
        yield "create", name, copies
        dropped = (*begun.dropped, *(each for each in state.files if each not in kept))
        files = {**kept, name: "".join(sources)}
        counted = replace(begun, announced=(), files=files, dropped=dropped)
        yield from self.commit("E", number + 1, counted)

    def read(self, run: str) -> Steps[Commit]:
        """Read all images, as a reader, and return the commit that they are of."""
        forgotten = frozenset(self.forgotten)
        number, state = yield from self.highest(run)
        while not state.is_removed:
            rows = yield from self.read_rows(state)
            ok = [image for image in rows if rows[image].status == "ok"]
            is_whole = True
            for image in ok:
                part = (yield "get", rows[image].part) or BURIED
                is_whole &= part.get(image) == rows[image].drawing
            if is_whole:
                assert forgotten.isdisjoint(ok), "a reader is given a forgotten image"
                break
            before = number
            number, state = yield from self.highest(run)
            assert number > before, "a reader misses an image of the highest commit"
        return state

    def verify(self, run: str) -> Steps[None]:
        """Read everything, and bury what an interrupted forget has left."""
        state = yield from self.read(run)
        yield from self.bury(state.buried)
        self.forgotten |= state.forgotten


def start_over(attempt: Callable[[], Steps[bool]], tries: int = 20) -> Steps[None]:
    """Attempt a command from the highest commit on until it succeeds."""
    for _ in range(tries):
        if (yield from attempt()):
            return
    raise TryAgain("others are committing")


def create_all(objects: Mapping[str, object]) -> Steps[None]:
    """Create objects. Those that exist stay as they are."""
    for key, value in objects.items():
        yield "create", key, value


def copied(sources: Mapping[str, str]) -> Steps[Part]:
    """Read images from their parts; None for one that is no longer there."""
    copies = {}
    for image, key in sources.items():
        copies[image] = ((yield "get", key) or BURIED).get(image)
    return copies
