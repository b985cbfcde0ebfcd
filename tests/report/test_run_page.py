"""The page in a real browser: what it says against the dumps, what it costs, and that a model's text stays text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report import browser
from tests.report.synthetic import write_run
from verl_grail.report.colours import DARK, LIGHT, strength
from verl_grail.report.run import build_report
from verl_grail.report.tokens import clean

MAX_NODES = 2000
"""Elements of a page with short responses, whatever the number of rollouts: a list page, the charts, the controls."""
ATTACK = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><b>bold</b>&amp;"
)


@pytest.fixture(scope="module")
def driver():
    browser.require()
    with browser.chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "small", steps=4, prompts=6, samples=6, tokens=40)
    build_report(folder)
    return folder


def dumped(run: Path) -> list[dict]:
    files = sorted((run / "rollouts").glob("*.jsonl"), key=lambda p: int(p.stem))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def js(driver, code: str, *arguments):
    helpers = "const $ = (s) => document.querySelector(s), all = (s) => [...document.querySelectorAll(s)]; "
    return driver.execute_script(helpers + code, *arguments)


def quiet(driver) -> None:
    """No error was logged, and nothing was fetched."""
    assert driver.get_log("browser") == []
    assert js(driver, "return performance.getEntriesByType('resource').length") == 0


def set_filter(driver, **fields: object) -> int:
    """Reset the filters, set fields by their id without ``f_`` and give the number of matches."""
    js(driver, "$('#f-reset').click()")
    for name, value in fields.items():
        js(
            driver,
            "const f = $('#f-' + arguments[0]); f.value = arguments[1];"
            "f.dispatchEvent(new Event('input', {bubbles: true}))",
            name.replace("_", "-"),
            str(value),
        )
    driver.execute_async_script("setTimeout(arguments[0], 160)")  # text and number fields wait for the typing to end
    return int(js(driver, "return $('#matches').textContent").split(" of ")[0].replace(",", ""))


def mean_weight(row: dict) -> float:
    return sum(row["grail_weights"]) / len(row["grail_weights"])


FILTERS = [
    ({}, lambda r: True),
    ({"step": 2}, lambda r: r["step"] == 3),  # the field's value is the step's number in the list
    ({"verdict": 1}, lambda r: r["acc"] == 1),
    ({"verdict": 0, "answer": 0}, lambda r: r["acc"] == 0 and r["answer_span"] is None),
    ({"answer": 1, "step": 0}, lambda r: r["answer_span"] is not None and r["step"] == 1),
    ({"bonus_low": 0.0001}, lambda r: r["gar_bonus"] is not None and r["gar_bonus"] >= 0.0001),
    ({"bonus_high": 0.05}, lambda r: r["gar_bonus"] is not None and r["gar_bonus"] <= 0.05),
    ({"weight_low": 1.05, "weight_high": 1.2}, lambda r: 1.05 <= mean_weight(r) <= 1.2),
    ({"cosine_low": 0.3}, lambda r: r["gar_cosine"] is not None and r["gar_cosine"] >= 0.3),
    # whole numbers, so that some rollouts lie on the ends of the range
    ({"length_low": 38, "length_high": 46}, lambda r: 38 <= len(r["tokens"]) <= 46),
    ({"text": "THEREFORE"}, lambda r: "therefore" in "".join(r["tokens"])),
    ({"text": "what is 1"}, lambda r: "what is 1" in r["input"].lower()),
    ({"text": "no such words"}, lambda r: False),
]


def check_filters(driver, rows: list[dict]) -> None:
    for fields, passes in FILTERS:
        assert set_filter(driver, **fields) == sum(map(passes, rows)), fields


def test_filters_give_the_dumps_counts(driver, run):
    browser.show(driver, run / "report.html")
    rows = dumped(run)
    check_filters(driver, rows)
    assert all(0 < sum(map(passes, rows)) < len(rows) for _, passes in FILTERS[1:-1])
    quiet(driver)


@pytest.mark.parametrize("sort, value", [("bonus", "gar_bonus"), ("cosine", "gar_cosine"), ("score", "score")])
def test_sorting_and_paging(driver, run, sort, value):
    browser.show(driver, run / "report.html")
    rows = dumped(run)
    known = sorted((r[value] for r in rows if r[value] is not None), reverse=True)
    shown = []
    for order, expected in (("desc", known), ("asc", known[::-1])):
        set_filter(driver, sort=sort, order=order)
        shown = js(
            driver,
            "const out = []; for (;;) { out.push(...all('.list button').map((b) => Number(b.dataset.row)));"
            "const next = all('.pager button')[1]; if (next.disabled) return out; next.click(); }",
        )
        assert sorted(shown) == list(range(len(rows)))
        assert [rows[i][value] for i in shown] == pytest.approx(expected + [None] * (len(rows) - len(expected)))


def test_tokens_are_the_dumps_with_colours_marks_and_words(driver, run):
    browser.show(driver, run / "report.html")
    rows = dumped(run)
    set_filter(driver, sort="weight", order="desc")
    js(driver, "$('.list button').click()")
    row = rows[js(driver, "return Number($('.list button[aria-pressed=true]').dataset.row)")]
    spans = js(
        driver,
        "return all('.detail .tok').map((s) =>"
        "[s.textContent, s.className.split(' ').filter(Boolean), s.style.getPropertyValue('--t')])",
    )
    assert [text for text, _, _ in spans] == [clean(token) for token in row["tokens"]]
    start, end = row["answer_span"]
    ((a, b),) = row["answer_contents"]
    for i, (_, classes, share) in enumerate(spans):
        region = "reasoning" if i < start else "post" if i >= end else "content" if a <= i < b else "delimiter"
        side, alpha = strength(row["grail_weights"][i])
        assert classes == ["tok", *([side] if side else []), region]
        assert float(share or 0) == pytest.approx(alpha, abs=0.011)
    # regions differ without any colour
    lines = (
        "return ['content', 'delimiter', 'post', 'reasoning'].map((c) => {"
        "const s = getComputedStyle($('.detail .' + c));"
        "return s.textDecorationLine + s.textDecorationStyle + s.fontStyle })"
    )
    assert len(set(js(driver, lines))) == 4
    # the keyboard reaches every token's numbers
    box = driver.find_element("css selector", ".detail .tokens")
    driver.execute_script("arguments[0].focus()", box)
    keys = [{"type": "keyDown", "key": "End"}, {"type": "keyDown", "key": "ArrowLeft"}]
    for key in keys:
        driver.execute_cdp_cmd("Input.dispatchKeyEvent", key)
    n = len(row["tokens"])
    said = js(driver, "return $('.detail .readout').textContent")
    assert said.startswith(f"token {n - 1} of {n} “.” · post · weight 1.000 · advantage")
    assert float(said.split()[-1]) == pytest.approx(row["advantages"][n - 2], abs=1e-3)


def test_best_and_worst_beside_the_expert(driver, run):
    browser.show(driver, run / "report.html")
    prompts: dict[str, list[dict]] = {}
    for row in dumped(run):
        if row["gar_bonus"] is not None:
            prompts.setdefault(row["uid"].rsplit("_", 2)[0], []).append(row)
    several = {uid: rows for uid, rows in prompts.items() if len(rows) > 1}
    spread = {
        uid: max(r["gar_bonus"] for r in rows) - min(r["gar_bonus"] for r in rows) for uid, rows in several.items()
    }
    widest = max(spread, key=spread.get)
    best = max(several[widest], key=lambda r: r["gar_bonus"])
    worst = min(several[widest], key=lambda r: (r["gar_bonus"], r["gar_cosine"]))
    titles = js(driver, "return all('#compare article h3').map((h) => h.textContent)")
    numbers = [f"bonus {r['gar_bonus']:.3f}, cosine {r['gar_cosine']:.3f}" for r in (best, worst)]
    assert titles == [f"Best: {numbers[0]}", "Expert solution", f"Worst: {numbers[1]}"]
    assert (
        js(driver, "return $('#compare output').textContent") == f"of {len(several)} prompts with at least two bonuses"
    )
    (solution,) = next(
        r["expert_solutions"] for r in dumped(run) if r["uid"].startswith(f"{widest}_") and r["expert_solutions"]
    )
    assert js(driver, "return all('#compare article')[1].querySelector('.text').textContent") == solution
    texts = js(driver, "return all('#compare .tokens').map((t) => t.textContent)")
    assert texts == ["".join(r["tokens"]) for r in (best, worst)]


def test_the_slider_shows_one_step_or_all(driver, run):
    browser.show(driver, run / "report.html")
    rows = dumped(run)
    readouts = "return all('#steps .readout').map((p) => p.textContent)"
    move = (
        "const s = $('#step-slider'); s.value = arguments[0]; s.dispatchEvent(new Event('input'));"
        "return $('#step-said').textContent"
    )
    for at, said, chosen in ((4, "all 4 steps", rows), (1, "step 2", [r for r in rows if r["step"] == 2])):
        assert js(driver, move, at) == said
        weighted = [r for r in chosen if r["grail_outcome"] == "weighted"]
        tokens = sum(len(r["tokens"]) for r in weighted)
        cosines = [r["gar_cosine"] for r in chosen if r["gar_cosine"] is not None]
        histogram, profile, cosine = js(driver, readouts)
        assert histogram == f"{tokens:,} tokens of {len(weighted)} weighted rollouts, of {len(chosen)}."
        assert profile.startswith(f"wrong ({len(weighted)}) rollouts of")
        assert cosine.startswith(f"{len(cosines)} rollouts, mean ") and float(cosine.split()[3]) == pytest.approx(
            sum(cosines) / len(cosines), abs=1e-4
        )
    # bars: the share of tokens in a bin, read by keyboard
    js(driver, "$('#steps svg[role=img]').focus()")
    for _ in range(2):
        driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": "ArrowRight"})
    low = [w for r in weighted for w in r["grail_weights"][: r["answer_span"][0]] if 0.5 <= w < 0.6]
    said = js(driver, readouts)[0]
    assert said.startswith("weight 0.5 to 0.6: reasoning ")
    assert float(said.split()[5]) == pytest.approx(100 * len(low) / tokens, rel=1e-3)


def test_curves_say_the_logged_values(driver, run):
    browser.show(driver, run / "report.html")
    log = {line["step"]: line["data"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    titles = js(driver, "return all('#curves .charts h3').map((h) => h.textContent)")
    assert titles[:3] == ["Reward", "Validation accuracy", "Token weight, mean and standard deviation"]
    js(driver, "all('#curves svg[role=img]')[0].focus()")
    for key in ("End", "ArrowLeft"):
        driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": key})
    said = js(driver, "return $('#curves .readout').textContent")
    assert said.startswith("step 3: ")
    assert float(said.split()[-1]) == pytest.approx(log[3]["critic/rewards/mean"], rel=1e-3)
    names = js(driver, "return all('#metric-names option').map((o) => o.value)")
    assert names == sorted({name for data in log.values() for name in data})


def test_text_of_a_model_stays_text(driver, tmp_path):
    run = tmp_path / ATTACK.replace("/", "_")[:60]
    (run / "rollouts").mkdir(parents=True)
    tokens = ["<b>", ATTACK, "\u202e", "\x00", " \\boxed{", ATTACK, "}"]
    row = {"input": ATTACK, "output": ATTACK, "gts": ATTACK, "score": 1.0, "acc": 1.0, "step": 1, "outcome": ATTACK}
    row |= {
        "tokens": tokens,
        "grail_weights": [0.5] * 7,
        "grail_outcome": ATTACK,
        "answer_span": [4, 7],
        "answer_contents": [[5, 6]],
    }
    row |= {
        "advantages": [0.1] * 7,
        "gar_outcome": ATTACK,
        "gar_bonus": 0.1,
        "gar_cosine": 0.5,
        "expert_solutions": [ATTACK],
    }
    rows = [row | {"uid": f"{ATTACK}_{i}_0", "gar_bonus": 0.1 * i} for i in range(2)]
    (run / "rollouts" / "1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + "[]\n")
    (run / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "data": {ATTACK: 1.0, f"val-core/{ATTACK}/acc/mean@1": 0.5}})
    )
    done = build_report(run, title=ATTACK)
    assert "<img" not in done.page.read_text()
    browser.show(driver, done.page)
    assert driver.title == ATTACK and js(driver, "return $('h1').textContent") == ATTACK
    assert js(driver, "return [all('img, b').length, all('script').length]") == [0, 1]  # the data's element is gone
    assert js(driver, "return $('.detail .tokens').textContent") == "".join(map(clean, tokens))
    shown = js(driver, "return all('.detail dd').map((d) => d.textContent)")
    assert shown.count(ATTACK) == 5  # gold, answer, and three outcomes
    assert ATTACK in js(driver, "return all('#metric-names option').map((o) => o.value)")
    assert js(driver, "return all('#compare article')[1].querySelector('.text').textContent") == ATTACK
    # equal cosines: the bonus decides
    titles = js(driver, "return all('#compare article h3').map((h) => h.textContent)")
    assert titles[0].startswith("Best: bonus 0.100") and titles[2].startswith("Worst: bonus 0.000")
    quiet(driver)
    # and the policy stops what would get past the escaping
    injected = '<img src="data:x" onerror="document.title=1">'
    js(driver, "document.body.insertAdjacentHTML('beforeend', arguments[0])", injected)
    driver.execute_async_script("setTimeout(arguments[0], 100)")
    assert driver.title == ATTACK
    driver.get_log("browser")


def test_a_long_response_is_drawn_in_parts(driver, tmp_path):
    (tmp_path / "rollouts").mkdir()
    row = {"input": "p", "output": "", "uid": "a_0_0", "tokens": [f" {i}" for i in range(9000)], "masked": [[5, 7]]}
    (tmp_path / "rollouts" / "1.jsonl").write_text(json.dumps(row | {"grail_weights": [2.0] * 9000}) + "\n")
    browser.show(driver, build_report(tmp_path).page)
    drawn = []
    for _ in range(3):
        drawn.append(js(driver, "return all('.detail .tok').length"))
        js(driver, "all('.detail button').at(-1).click()")
    assert drawn == [4000, 8000, 9000] and js(driver, "return all('.detail button').at(-1).hidden")
    assert js(driver, "return $('.detail .tokens').textContent") == "".join(row["tokens"])
    assert js(driver, "return all('.masked.tok').map((s) => s.textContent)") == [" 5", " 6"]
    quiet(driver)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_fits_a_phone_and_follows_the_readers_scheme(driver, run, width, dark):
    browser.show(driver, run / "report.html", width=width, dark=dark)
    assert js(driver, "return document.documentElement.scrollWidth") <= width
    background = js(driver, "return getComputedStyle(document.body).backgroundColor")
    assert background == f"rgb{(DARK if dark else LIGHT)['bg']}"
    columns = js(driver, "return getComputedStyle($('.columns')).gridTemplateColumns.split(' ').length")
    assert columns == (1 if width == 360 else 3)
    unreachable = (
        "return all('button, input, select, a, summary, .text, svg[role=img]').filter((e) => e.tabIndex < 0).length"
    )
    assert js(driver, unreachable) == 0
    unnamed = (
        "return all('input, select').filter((e) => !e.labels.length && !e.getAttribute('aria-label')).map((e) => e.id)"
    )
    assert js(driver, unnamed) == []


def test_a_sample_is_said(driver, run, tmp_path):
    assert build_report(run, tmp_path / "page.html", max_rollouts=20).kept == 20
    browser.show(driver, tmp_path / "page.html")
    assert js(driver, "return $('#sampled').textContent").startswith("A sample: 20 of the 144 dumped rollouts are on")
    assert set_filter(driver) == 20
    browser.show(driver, run / "report.html")
    assert js(driver, "return $('#sampled')") is None


def test_ten_thousand_rollouts_stay_a_page_of_few_elements(driver, tmp_path):
    run = write_run(tmp_path / "large", steps=40, prompts=32, samples=8, tokens=24)
    rows = dumped(run)
    done = build_report(run, max_rollouts=20_000)
    assert done.kept == done.total == len(rows) == 10_240
    browser.show(driver, done.page)
    count = "return all('*').length"
    assert 500 < js(driver, count) < MAX_NODES
    check_filters(driver, rows)
    set_filter(driver, sort="bonus", order="desc")
    best = max(r["gar_bonus"] for r in rows if r["gar_bonus"] is not None)
    assert rows[js(driver, "return Number($('.list button').dataset.row)")]["gar_bonus"] == best
    for _ in range(30):
        js(driver, "all('.pager button')[1].click(); all('.list button').at(-1).click()")
    assert js(driver, "return all('.list li').length") == 25 and js(driver, count) < MAX_NODES
    quiet(driver)
