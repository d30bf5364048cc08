import itertools
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from report_synthetic import learning, scales_of, write_run
from tddelta.errors import ConfigError
from tddelta.report import Report, figures, page, write_report
from tddelta.report.run_set import RunSet
from tddelta.report.statistics import learning_curve
from tddelta.report.words import slug
from tddelta.runs import load_runs

HOSTILE = '<script>alert("x")</script>&'
VOID = {"meta", "br", "use", "path", "link", "img"}


class Page(HTMLParser):
    """Collects tags and text, and checks that elements are closed in order and ids are unique."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert not self.open
        ids = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Two environments, two agents, two seeds, one of which was interrupted; the report of them."""
    out = tmp_path_factory.mktemp("runs")
    for e, environment in enumerate(("Breakout-MinAtar", "Asterix-MinAtar")):
        for (agent, final), seed in itertools.product({"ppo": 5.0, "ppo-delta": 9.0}.items(), range(2)):
            ends, returns = learning(np.random.default_rng([e, seed]), final, 100_000, 300)
            state = "interrupted" if (agent, environment, seed) == ("ppo", "Asterix-MinAtar", 1) else "finished"
            given = {"returns": returns, "end_steps": ends, "steps": 100_000, "state": state}
            write_run(out, environment, agent, seed, **given, rollout=e == 1, critic=e == 1)  # drawing takes long
    return write_report(out)


@pytest.fixture(scope="module")
def html(full):
    return full.read_text(encoding="utf-8")


@pytest.mark.slow
def test_default_place_and_the_files_beside_it(full):
    assert full.name == "report.html"
    assert (full.parent / "Breakout-MinAtar/ppo/seed-0").is_dir()
    figures = {path.name for path in (full.parent / "figures").iterdir()}
    assert {"learning-breakout-minatar.png", "learning-breakout-minatar.pdf", "iqm-minatar.pdf"} <= figures
    assert {"episode-asterix-minatar-ppo-delta.png", "critic-asterix-minatar.png"} <= figures
    assert "calibration-asterix-minatar-ppo-delta.png" in figures
    tables = {path.name for path in (full.parent / "tables").iterdir()}
    names = ("scores", "differences-asymptotic", "differences-average", "aggregates-minatar", "ladder", "diagnostics")
    assert {f"{name}.{kind}" for name in (*names, "runs") for kind in ("csv", "tex")} <= tables
    assert not list(full.parent.rglob("*.tmp"))


def test_the_numbers_are_those_of_the_runs(full, html):
    runs = RunSet(load_runs(full.parent))
    scores = [float(np.mean(run.episodes["returns"][-100:])) for run in load_runs(full.parent / "Breakout-MinAtar/ppo")]
    mean, error = np.mean(scores), np.std(scores, ddof=1) / np.sqrt(2)
    decimals = 2 if error < 9.95 else 1
    assert f"{mean:.{decimals}f} ± {error:.{decimals}f}" in html
    (comparison, _) = runs.comparisons()
    assert f"+{comparison.welch.difference:.2f}" in html


def test_well_formed_and_self_contained(html):
    parsed = Page(html)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", html)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "link", "img", "iframe", "base")]
    for _, attributes in parsed.tags:
        assert (attributes.get("href") or "#").startswith("#")
        assert "src" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    targets = {attributes["href"][1:] for _, attributes in parsed.tags if attributes.get("href")}
    assert targets <= {attributes.get("id") for _, attributes in parsed.tags}


def test_accessible(html):
    parsed = Page(html)
    images = [attributes for _, attributes in parsed.tags if attributes.get("role") == "img"]
    assert len(images) == html.count("<figure ")
    assert all(image["aria-label"] for image in images)
    assert html.count("<caption>") == html.count("<table ")
    assert html.count("<figcaption>") == html.count("<figure ")
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


def test_a_reading_stands_under_each_figure_and_over_the_ladders(html):
    assert html.count('<p class="reading">') == html.count("<figure ")
    assert "Over the last 100 episodes ppo-delta is ahead with " in html
    assert "<li>ppo-delta: 6 scales look 3.125 to 100 steps ahead, each 2 times as far as the one before; " in html


def test_everything_is_there(html):
    text = " ".join(Page(html).text.split())
    for part in (
        "ppo-delta against ppo on 2 environments",
        "1 run was interrupted: Asterix-MinAtar, ppo, seed 1.",
        "mean of 2 seeds, band: 95 % t interval",
        "Interquartile mean",
        "Did the critic get better?",
        "Contraction factor",
        "Settings that differ between agents",
        "tddelta compare Breakout-MinAtar --agents ppo ppo-delta",
        "jax 0.10.2",
        "W γ=0.680",
    ):
        assert " ".join(part.split()) in text, part


def test_a_phone_shows_whose_numbers_these_are(html):
    """The name of a row stays in sight, and the environment is a row of its own: names leave room for numbers."""
    table = re.search(r'<table id="table-scores">.*?</table>', html, flags=re.DOTALL).group()
    heads = re.findall(r'<th scope="col".*?>(.*?)</th>', table)
    assert heads == ["Agent", "Last 100 episodes", "All episodes", "Seeds"]
    rows = [re.findall(r">([^<>]+)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", table, flags=re.DOTALL)]
    assert [row[0] for row in rows[1:]] == ["ppo", "ppo-delta"] * 2
    assert {len(row) for row in rows} == {len(heads)}
    groups = re.findall(r'<tbody>\s*<tr class="group"><th scope="rowgroup" colspan="4"><span>(.*?)</span>', table)
    assert groups == ["Asterix-MinAtar", "Breakout-MinAtar"]
    assert table.count("<tbody>") == table.count("</tbody>") == 2
    style = " ".join(html[html.index("<style>") : html.index("</style>")].split())
    assert 'th[scope="row"] { position: sticky; left: 0; background: var(--ground); }' in style
    assert style.count("--ground: #") == 3  # light, dark, and paper: opaque in all of them
    assert style.count("--shadow: ") == 2


def test_the_page_says_what_weakens_its_numbers(html, tmp_path):
    text = Page(html).text
    assert "No link to the logs is known; not independently verified." in text
    assert "vectorised" not in text
    write_run(tmp_path, "A", "ppo", 0, vectorized=True, rollout=False, critic=False)
    write_run(tmp_path, "A", "ppo", 2, rollout=False, critic=False)
    text = Page(write_report(tmp_path).read_text(encoding="utf-8")).text
    assert "1 of these runs were vectorised, the seeds of an agent in one program: an update equals" in text


def test_colours_follow_the_theme(html):
    drawn = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert drawn
    for light, _ in figures.PALETTE:
        assert not any(light in figure for figure in drawn)
    assert not any(figures.INK in figure for figure in drawn)
    assert any("var(--p5)" in figure for figure in drawn)


def contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_on_both_backgrounds():
    for light, dark in figures.PALETTE:
        assert contrast(light, "#ffffff") >= 3
        assert contrast(dark, "#14171c") >= 3


def test_hostile_names_are_only_text(tmp_path):
    write_run(tmp_path, "A", "ppo", command=("tddelta", HOSTILE), rollout=False, critic=False)
    write_run(tmp_path, "A", HOSTILE, label="hostile", state="failed", message=HOSTILE, returns=[1.0, 2.0])
    html = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    parsed = Page(html)
    assert not [tag for tag, _ in parsed.tags if tag == "script"]
    assert HOSTILE in parsed.text
    assert (tmp_path / "out/report.html").exists()


def test_one_run_in_progress(tmp_path):
    path = write_run(tmp_path, "CartPole-v1", "ppo-delta", state="running", returns=[])
    report = write_report(path)
    assert report == path / "report.html"
    text = Page(report.read_text(encoding="utf-8")).text
    for part in ("nothing is compared", "No run recorded an episode", "No training episode ended", "n/a", "Left out:"):
        assert part in text


def test_an_empty_folder_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError) as error:
        write_report(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="paths must not be empty"):
        write_report([])
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- files


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of one run, whose report has one empty figure per environment: these tests are about files."""

    def drawings(runs):
        for environment in runs.environments:
            name = f"learning-{slug(environment)}"
            yield figures.Drawing(name, "learning", environment, "", "", figures.new_figure(width=1.0, height=1.0)[0])

    monkeypatch.setattr(page, "drawings", drawings)
    write_run(tmp_path / "runs", "A", "ppo", returns=[1.0, 2.0], rollout=False, critic=False)
    return tmp_path / "runs"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_redraw_moves_what_else_is_in_its_folders(runs, out):
    write_run(runs, "B", "ppo", returns=[1.0, 2.0], rollout=False, critic=False)
    write_report(runs, out)
    before = {path.name for path in out.rglob("*")}
    (out / "figures/mine.png").write_text("first")
    (out / "figures/learning-a.pdf").write_text("changed by hand")
    report = Report(load_runs(runs / "B"))
    report.write(out)
    assert before - {path.name for path in (out / "figures").iterdir()} >= {"learning-a.png", "learning-a.pdf"}
    earlier = out / "figures/earlier"
    assert sorted(path.name for path in earlier.iterdir()) == ["learning-a.pdf", "learning-a.png", "mine.png"]
    assert (earlier / "learning-a.pdf").read_text() == "changed by hand"
    assert report.problems == [f"{out / 'figures'} held 3 files that this report does not make: moved to {earlier}"]
    (out / "figures/mine.png").write_text("second")
    Report(load_runs(runs / "B")).write(out)
    assert [(earlier / f"mine{end}.png").read_text() for end in ("", "-2")] == ["first", "second"]
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_a_redraw_that_is_cut_short_loses_nothing(runs, out, monkeypatch):
    report = Report(load_runs(runs))
    first = report.write(out).read_bytes()
    folder = out / "figures"
    folder.chmod(0o750)
    mine = {f"mine-{n}": f"{n}" for n in range(3)}
    for name, text in mine.items():
        (folder / name).write_text(text)
    rename = Path.rename

    def once(path, place):
        monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        return rename(path, place)

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(KeyboardInterrupt):
        report.write(out)
    monkeypatch.setattr(Path, "rename", rename)
    assert {path.name: path.read_text() for path in folder.rglob("mine*")} == mine
    for _ in range(2):
        assert report.write(out).read_bytes() == first
    assert len(report.problems) == 1 and "figures held 2 files" in report.problems[0]
    assert {path.name: path.read_text() for path in (folder / "earlier").iterdir()} == mine
    assert sorted(path.name for path in folder.iterdir()) == ["earlier", "learning-a.pdf", "learning-a.png"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert sorted(path.name for path in out.iterdir()) == ["figures", "report.html", "tables"]


def test_two_redraws_at_once(tmp_path):
    contents = {f"{n}.csv": b"%d" % n * 1000 for n in range(30)}
    (tmp_path / "figures").mkdir()
    for n in range(30):
        (tmp_path / f"figures/mine-{n}").touch()
    with ThreadPoolExecutor(4) as pool:
        moved = list(pool.map(lambda _: page._fill(tmp_path / "figures", contents), range(12)))
    assert sum(moved) == 30 == len(list((tmp_path / "figures/earlier").iterdir()))
    files = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir() if path.is_file()}
    assert files == contents


@pytest.mark.parametrize("place", ["figures", "tables/earlier"])
def test_a_file_in_the_place_of_a_folder_is_refused_before_anything_is_written(runs, out, place):
    (out / place).parent.mkdir(parents=True)
    (out / "report.html").write_text("old")
    (out / place).write_text("mine")
    before = sorted(out.rglob("*"))
    with pytest.raises(ConfigError, match=rf"cannot be written at .*: .*{place} is no folder: name another place"):
        write_report(runs, out)
    assert sorted(out.rglob("*")) == before
    assert ((out / "report.html").read_text(), (out / place).read_text()) == ("old", "mine")


def test_pages_in_one_folder_have_folders_of_their_own(runs, out):
    write_report(runs, out)
    other = write_report(runs, out / "other.html")
    names = {"report.html", "figures", "tables", "other.html", "other-figures", "other-tables"}
    assert {path.name for path in out.iterdir()} == names
    assert "<code>other-tables/</code>" in other.read_text(encoding="utf-8")


def test_a_folder_of_somebody_elses_figures_is_left_alone(runs, out, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for folder in (out, elsewhere):
        folder.mkdir()
    (out / "figures").symlink_to(elsewhere)
    (elsewhere / "mine.png").write_text("mine")
    with pytest.raises(ConfigError, match=r"figures holds files, and the report would move them to .*earlier: name"):
        write_report(runs, out)
    assert [path.name for path in out.iterdir()] == ["figures"]
    (elsewhere / "mine.png").unlink()
    write_report(runs, out)
    assert (out / "figures").is_symlink() and (elsewhere / "learning-a.png").exists()


def test_a_report_that_cannot_be_written_says_where_and_leaves_the_old_one(runs, out, monkeypatch):
    out.write_text("not a folder")
    with pytest.raises(ConfigError, match=r"the report cannot be written at .*out.* \(.+\): name another place"):
        write_report(runs, out / "below")
    (runs / "taken" / "report.html").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"the report cannot be written at .*report\.html \(.+\): name another"):
        write_report(runs, runs / "taken")
    (runs / "report.html").write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(ConfigError, match="disk full"):
        write_report(runs)
    assert (runs / "report.html").read_text() == "old"


# ---------------------------------------------------------------- drawing


class TestPlots:
    def test_agents_keep_their_colours(self):
        assert figures.agent_styles(["ppo-delta", "ppo"]) == {"ppo-delta": 5, "ppo": 0}
        assert figures.agent_styles(["mine", "ppo"])["ppo"] == 0
        names = [f"agent {i}" for i in range(20)] + ["ppo-delta"]
        assert len(set(figures.agent_styles(names).values())) == 21

    def test_the_legend_names_each_band_where_they_differ(self):
        _, (axes,) = figures.new_figure()
        two = learning_curve([[1, 2]] * 2, [[0.0, 1.0], [1.0, 2.0]], [1, 2])
        one = learning_curve([[1, 2]], [[0.0, 1.0]], [1, 2])
        assert figures.learning_curves(axes, {"ppo": two, "ppo+": one}, {"ppo": 0, "ppo+": 1}) == 3
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels == ["ppo (mean of 2 seeds, band: 95 % t interval)", "ppo+ (one seed, no band)"]

    @pytest.mark.parametrize("agent", ["ppo", "ppo-delta"])
    def test_recorded_episode(self, agent):
        scales = scales_of(agent)
        count = figures.panel_count(scales)
        assert count == (2 if agent == "ppo" else len(scales) + 2)
        figure, axes = figures.new_figure(count, share_x=True)
        deltas = np.random.default_rng(0).normal(size=(50, len(scales)))
        figures.recorded_episode(axes, deltas, np.eye(50)[3], scales)
        figure.canvas.draw()
        np.testing.assert_allclose(axes[0].lines[0].get_ydata(), deltas.sum(axis=1))
        if agent == "ppo-delta":
            assert axes[1].get_ylabel() == "W  γ=0.990"
            np.testing.assert_allclose(axes[1].lines[0].get_ydata(), deltas[:, -1])

    def test_thinning_keeps_extremes(self):
        series = np.zeros(10_000)
        series[[1234, 5678]] = [7.0, -7.0]
        time, kept = figures.thin(series, 200)
        assert len(kept) <= 202
        assert {7.0, -7.0} <= set(kept.tolist())
        assert (np.diff(time) > 0).all()


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_whatever_the_users_plotting_settings(tmp_path):
    for place in itertools.product(("Breakout-MinAtar", "Asterix-MinAtar"), ("ppo", "ppo-delta"), range(2)):
        write_run(tmp_path / "runs", *place, critic=False, rollout=place[:1] == ("Breakout-MinAtar",))
    contents = []
    for name, settings in (("plain", {}), ("changed", CHANGED)):
        with matplotlib.rc_context(settings):
            folder = write_report(tmp_path / "runs", tmp_path / name).parent
        assert matplotlib.rcParams["font.size"] == matplotlib.rcParamsDefault["font.size"]
        files = (path for path in folder.rglob("*.*") if path.is_file())
        contents.append({path.relative_to(folder): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
    assert {path.suffix for path in contents[0]} == {".html", ".pdf", ".png", ".csv", ".tex"}


CHANGED = {
    "text.usetex": True, "savefig.dpi": 33, "savefig.bbox": "tight", "font.size": 22, "lines.linewidth": 9,
    "figure.facecolor": "black", "svg.fonttype": "path", "path.sketch": (1, 100, 2), "axes.grid": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "backend"),
    [("report", "misspelt"), ("report", "module://no_such"), ("paper", "misspelt"), ("inspector.video", "misspelt")],
)
def test_a_backend_that_cannot_be_loaded_does_not_matter(module, backend):
    program = f"import os, tddelta.{module}, matplotlib; print(os.environ['MPLBACKEND'], matplotlib.__name__)"
    environment = os.environ | {"MPLBACKEND": backend}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{backend} matplotlib\n", "")
