"""The inspector's page in Chromium: what it shows, and what keys, mouse and a phone do with it."""

import base64
import csv
import io
import json
import re

import numpy as np
import pytest

import tddelta as tdd
from browser import CHROMIUM, Browser, until
from inspect_data import SCALES, game
from tddelta.inspector import Critic, Recording, from_observations
from tddelta.queries import value_at

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"), pytest.mark.slow]

READY = "document.documentElement.dataset.frames === 'ready'"
STEPS = 120


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened
        assert not opened.problems


@pytest.fixture(scope="module")
def recording():
    other = np.random.default_rng(9).normal(size=(STEPS, 2)).cumsum(axis=0)
    return Recording.read(game(STEPS)).beside(Critic("another", np.array([0.5, 0.975]), other))


@pytest.fixture(scope="module")
def place(tmp_path_factory, recording):
    return tdd.inspect(recording, tmp_path_factory.mktemp("page"), step=10)


@pytest.fixture
def page(browser, place):
    browser.resize(1280, 1000)
    browser.theme("light")
    browser.open(place, READY)
    return browser


def number(text):
    return float(text.replace("−", "-").replace(" %", "").replace(",", ""))


def shown(page):
    """The step, and the table of numbers of every critic: W, share, V, came."""
    script = """[...document.querySelectorAll('tbody')].map((body) => [...body.rows].map(
        (row) => [...row.querySelectorAll('td[id]')].map((cell) => cell.textContent)))"""
    return int(page.text("#step").replace(",", "")), page.run(script)


def close(text, value):
    """Tell whether a text is a number to four digits."""
    return text == "–" if not np.isfinite(value) else number(text) == pytest.approx(float(value), rel=6e-4, abs=1e-12)


def check(page, recording, step):
    """Every number of the tables, and the picture, against the arrays."""
    at, tables = shown(page)
    assert at == step
    for critic, rows in zip(recording.critics, tables, strict=True):
        parts, values, came = critic.deltas[step], critic.values[step], recording.realised(critic)[step]
        for z, (w, share, v, followed) in enumerate(rows):
            assert close(w, parts[z]) and close(v, values[z]) and close(followed, came[z])
            assert number(share) == pytest.approx(100 * abs(parts[z]) / np.abs(parts).sum(), abs=0.51)
    picture = page.run(
        "(() => { const c = document.getElementById('screen');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return btoa(String.fromCharCode(...d)); })()"
    )
    pixels = np.frombuffer(base64.b64decode(picture), np.uint8).reshape(10, 10, 4)
    np.testing.assert_array_equal(pixels[..., :3], from_observations(recording.observations)[step])
    value = recording.critics[0].values[step, -1]
    said = page.text("#reading")
    assert said.startswith(f"Step {step}, reward {recording.rewards[step]:g}. ppo-delta, seed 0: V over 100 steps is ")
    assert close(said.split(" is ")[1].partition(";")[0], value)


def test_it_opens_where_asked_and_shows_the_arrays(page, recording):
    check(page, recording, 10)
    assert page.run("document.title") == "ppo-delta, seed 0 beside another on Breakout-MinAtar"


def test_keys_move_the_cursor_everywhere(page, recording):
    moves = [("ArrowRight", 11), ("ArrowRight Shift", 21), ("ArrowLeft", 20), ("Home", 0), ("ArrowLeft", 0)]
    for keys, step in [*moves, ("End", STEPS - 1), ("ArrowRight Shift", STEPS - 1)]:
        key, _, shift = keys.partition(" ")
        page.press(key, shift=bool(shift))
        check(page, recording, step)
    left, _, width, _ = page.box("#line")
    box = page.box(".time")
    assert left + width / 2 == pytest.approx(box[0] + box[2] - 12, abs=2)


def test_the_mouse_moves_the_cursor_and_shows_numbers(page, recording):
    left, top, width, height = page.box(".time[data-kind='values']")
    middle = left + 58 + (width - 58 - 12) * 50 / (STEPS - 1), top + height / 2
    page.mouse("moved", *middle)
    tip = page.text("#tip")
    assert tip.startswith("step 50   reward")
    at = recording.critics[0]
    line = next(line for line in tip.splitlines() if line.startswith("h 25:"))
    w, v = line.split("W ")[1].split("   V ")
    assert close(w, at.deltas[50, 3]) and close(v, at.values[50, 3])
    page.mouse("pressed", *middle, down=True)
    check(page, recording, 50)
    page.mouse("moved", left + width - 30, top + 20, down=True)
    page.mouse("released", left + width - 30, top + 20)
    step, _ = shown(page)
    assert step > 110
    check(page, recording, step)
    page.mouse("moved", 5, 5)
    assert page.run("document.getElementById('tip').hidden")


def test_the_panel_shows_numbers_at_and_between_trained_horizons(page, recording):
    left, top, width, height = page.box("#horizons")
    first, second = recording.critics
    inner = width - 58 - 12 - 16
    shortest, longest = np.log(2), np.log(100)  # the other critic begins at a horizon of 2 steps

    def at(horizon):
        return left + 58 + 8 + (np.log(horizon) - shortest) / (longest - shortest) * inner, top + height / 2

    page.press("Home")
    plain = drawn(page, "#horizons")
    page.mouse("moved", *at(25))
    lines = page.text("#tip").splitlines()
    assert lines[:3] == ["step 0", first.name, "h 25   γ 0.96"]
    w, v, came = re.match(r"W (\S+)   V (\S+)   came (\S+)", lines[3]).groups()
    assert close(w, first.deltas[0, 3]) and close(v, first.values[0, 3])
    assert close(came, recording.realised(first)[0, 3])
    assert drawn(page, "#horizons") != plain  # a line where the pointer is

    page.mouse("moved", *at(35))
    said = page.text("#tip").splitlines()
    for name, critic in ((first.name, first), (second.name, second)):
        horizon, value = said[said.index(name) + 1 : said.index(name) + 3]
        asked = number(horizon.split()[1])
        assert asked == pytest.approx(35, rel=0.1)
        assert value.endswith(", between trained horizons")
        expected = value_at(critic.deltas[0], critic.scales, 1 - 1 / asked)
        # the horizon is shown with four digits
        assert number(value.split()[1].rstrip(",")) == pytest.approx(float(expected), rel=3e-3, abs=1e-3)
    page.press("ArrowRight")
    assert page.text("#tip").startswith("step 1\n")
    page.mouse("moved", 5, 5)
    assert page.run("document.getElementById('tip').hidden")


def drawn(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)}).toDataURL()")


def test_a_scale_can_be_switched_off(page):
    charts = (".time[data-kind='stack']", "#horizons", ".time[data-kind='rewards']")
    before = [drawn(page, name) for name in charts]
    page.click("#shown-0-5")
    after = [drawn(page, name) for name in charts]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]
    page.press("6")
    assert [drawn(page, name) for name in charts] == before
    page.press("1")
    assert not page.run("document.getElementById('shown-0-0').checked")
    assert not page.run("document.getElementById('shown-1-0').checked")


def test_it_plays_and_pauses(page):
    page.press(" ")
    page.wait("Number(document.getElementById('step').textContent) > 12")
    assert page.text("#play") == "❚❚ Pause"
    page.click("#play")
    step, _ = shown(page)
    assert page.text("#play") == "▶ Play"
    assert page.text("#reading").startswith(f"Step {step},")
    page.press("End")
    page.press(" ")  # which begins anew
    page.wait("document.getElementById('step').textContent !== '119'")
    page.press(" ")


def test_zooming_keeps_the_cursor_in_sight(page, recording):
    whole = page.text("#range")
    page.press("+")
    assert page.text("#range") != whole
    page.press("+")
    page.press("End")
    check(page, recording, STEPS - 1)
    assert not page.run("document.getElementById('line').hidden")
    for _ in range(3):
        page.press("-")
    assert page.text("#range") == whole == "steps 0 – 119"


def test_the_export_holds_every_number(page, recording, tmp_path):
    page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#export")
    until(lambda: list(tmp_path.glob("*.csv")))
    (path,) = tmp_path.iterdir()
    assert path.name == "ppo-delta-seed-0-beside-another-on-Breakout-MinAtar.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode())))
    assert len(rows) == STEPS
    for t, row in enumerate(rows):
        assert (int(row["step"]), float(row["reward"])) == (t, float(recording.rewards[t]))
        assert row["terminated"] == str(int(recording.terminated[t]))
        assert float(row["lives"]) == recording.lives[t]
        for critic in recording.critics:
            came = recording.realised(critic)[t]
            for z, gamma in enumerate(critic.gammas):
                end = f"({gamma}) {critic.name}"
                assert critic.deltas.dtype.type(row[f"W{end}"]) == critic.deltas[t, z]
                assert critic.deltas.dtype.type(row[f"V{end}"]) == critic.values[t, z]
                assert row[f"came{end}"] == "" if np.isnan(came[z]) else float(row[f"came{end}"]) == came[z]


def test_the_curve_between_horizons_is_value_at(page, recording):
    between = page.run("JSON.parse(document.getElementById('data').textContent).critics[0].between")
    critic = recording.critics[0]
    assert len(between) == 41
    for horizon, weights in between[1:-1]:
        expected = value_at(critic.values[10] * 0 + critic.deltas[10], SCALES, 1 - 1 / horizon)
        assert np.dot(weights, critic.values[10]) == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(page, theme):
    page.theme(theme)
    contrasts = page.run("""(() => {
        const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(
            (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b; };
        const ground = light(getComputedStyle(document.body).backgroundColor);
        return ['h1', '.lead', '#reading', 'td', 'figcaption', 'thead th', 'footer'].map((name) => {
            const text = light(getComputedStyle(document.querySelector(name)).color);
            return (Math.max(text, ground) + .05) / (Math.min(text, ground) + .05); }); })()""")
    assert min(contrasts) >= 4.5
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is (theme == "light")


def test_a_phone_has_room_for_it(page, recording):
    page.resize(360, 740, phone=True)
    page.wait("document.getElementById('charts').clientWidth < 360")
    assert page.run("document.documentElement.scrollWidth") == 360
    assert page.run("[...document.querySelectorAll('.tables table')].every((t) => t.offsetWidth <= 344)")
    assert page.run(
        "[...document.querySelectorAll('button, select')].every((b) => b.offsetHeight >= 34 && b.offsetWidth >= 34)"
    )
    assert page.run("parseFloat(getComputedStyle(document.querySelector('td')).fontSize)") >= 12
    page.click("#on")
    check(page, recording, 11)


def test_everything_can_be_reached_by_keyboard_and_has_a_name(page):
    reached = set()
    for _ in range(40):
        page.press("Tab")
        reached.add(page.run("document.activeElement.id"))
    assert {"play", "back", "on", "cursor", "speed", "export", "charts", "shown-0-0", "shown-1-1"} <= reached
    tree = page.ask("Accessibility.getFullAXTree")["nodes"]
    kinds = ("button", "slider", "checkbox", "combobox", "image", "Canvas")
    unnamed = [
        node for node in tree if node.get("role", {}).get("value") in kinds and not node.get("name", {}).get("value")
    ]
    assert not unnamed


def test_one_critic_without_pictures_lives_or_second_scale(browser, tmp_path):
    arrays = game(20)
    plain = {name: arrays[name] for name in ("rewards", "terminated", "truncated")}
    place = tdd.inspect(plain | {"deltas": np.ones((20, 1)), "gammas": np.array([1.0])}, tmp_path)
    browser.open(place, "document.documentElement.dataset.page === 'ready'")
    browser.press("ArrowRight")
    step, (rows,) = shown(browser)
    assert (step, rows[0][0], rows[0][2]) == (1, "1", "1")
    assert browser.run("document.getElementById('screen')") is None
    assert browser.text("#reading").endswith("V over all that is left is 1.")
    assert "No pictures: the recording has neither frames nor observations that are pictures." in browser.text("main")
    left, top, width, height = browser.box("#horizons")
    browser.mouse("moved", left + width / 2, top + height / 2)
    assert browser.text("#tip").splitlines()[1:] == ["h ∞   γ 1", "W 1   V 1   came 4"]
