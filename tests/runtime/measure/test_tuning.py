"""runtime/measure/tuning.py over models whose time is a formula: what is found, and what is noise."""

import msgspec
import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu.prefetch import SAPPHIRE_RAPIDS, ZEN4, Distance
from pyc.runtime.measure import tuning
from pyc.runtime.measure.tuning import MANY_TOKENS, compare, tune_distances
from pyc.runtime.model import Model


@pytest.fixture
def decoder(fake, monkeypatch):
    """A model, and a setter of seconds(distances, tokens) of its steps; those steps are made, and not timed."""

    def make(seconds, context=64):
        info = fake.decoder_info(context=context)
        executor = fake.FakeDecoder(info, kv_blocks=16)
        step_s = tuning._step_s

        def pretended(session, slot, tokens):
            if not executor.calls:
                step_s(session, slot, tokens)
            return seconds(executor.distances, tokens)

        monkeypatch.setattr(tuning, "RUN_S", 0)
        monkeypatch.setattr(tuning, "_step_s", pretended)
        return Model(info, Generation(), executor, None, kv_blocks=16)

    return make


def few_of_codes(best):
    """Seconds of a CPU that wants one token's codes asked for `best` bytes ahead, and more tokens' panel by panel."""
    return lambda distances, tokens: (
        1 + abs(distances.codes.few - best) / 8192 if tokens == 1 else 2 - 0.5 * distances.codes.panel
    )


@pytest.mark.parametrize(("start", "best"), [(ZEN4, 2048), (SAPPHIRE_RAPIDS, 0)])
def test_what_is_faster_is_found_and_in_use(decoder, start, best):
    model = decoder(few_of_codes(best))
    found, findings = tune_distances(model, start, rounds=3)
    assert found.codes.few == best and found.codes.panel
    assert (found.floats, found.pairs) == (start.floats, start.pairs)
    assert model.executor.distances == found
    few, many, *others = findings
    assert (few.kind, few.tokens, few.after.few) == ("codes", 1, best)
    assert few.ratio == pytest.approx(1 / (1 + 2048 / 8192))
    assert (many.tokens, many.after.panel) == (MANY_TOKENS, True)
    assert [(one.kind, one.tokens, one.ratio) for one in others] == [
        (kind, tokens, 1) for kind in ("floats", "pairs") for tokens in (1, MANY_TOKENS)
    ]
    assert all(one.before == one.after for one in others)


def test_a_hundredth_is_noise(decoder):
    found, _ = tune_distances(decoder(lambda distances, tokens: 1 - distances.codes.few / 400_000), ZEN4, rounds=3)
    assert found == ZEN4


def test_what_was_faster_only_once_is_not_kept(decoder):
    """The first comparison of one token is lucky for one candidate; beside it alone it is not."""
    runs = []

    def seconds(distances, tokens):
        runs.append(distances)
        lucky = tokens == 1 and distances.codes.few == 1024 and len(runs) < 8 * 4
        return 0.5 if lucky else 1

    found, findings = tune_distances(decoder(seconds), ZEN4, rounds=3)
    assert found == ZEN4
    assert findings[0].ratio == 1


def test_a_machine_that_changes_its_speed_changes_no_ratio():
    clock = iter(range(1, 1000))
    ratios = compare(lambda one: (1 + next(clock) // 12) * one, 1.0, [2.0, 0.5], 9)
    assert ratios == pytest.approx([2, 0.5], rel=0.1)


def test_the_sequence_is_given_back_and_the_cache_is_as_long_as_before(decoder):
    model = decoder(few_of_codes(0))
    tune_distances(model, ZEN4, rounds=3)
    session = model.session
    slots = [session.acquire() for _ in range(model.info.max_sequences)]
    assert [session.length(slot) for slot in slots] == [0] * len(slots)


def test_what_cannot_be_tuned_is_refused(decoder, fake):
    with pytest.raises(RunError, match="a context of 7 tokens is too short; it takes 8"):
        tune_distances(decoder(few_of_codes(0), context=7), ZEN4, rounds=3)
    info = fake.encoder_info()
    with pytest.raises(RunError, match="fake-encoder is an encoder"):
        tune_distances(Model(info, Generation(), fake.FakeEncoder(info), None), ZEN4, rounds=3)


def test_candidates_change_what_is_tuned_alone():
    before = Distance(1, 2, False)
    assert {msgspec.structs.replace(one, few=1) for one in tuning._candidates(before, 1)} == {before}
    assert {one.few for one in tuning._candidates(before, MANY_TOKENS)} == {1}
    assert {one.panel for one in tuning._candidates(before, MANY_TOKENS)} == {True, False}
