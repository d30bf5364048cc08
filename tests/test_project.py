"""The project as a whole: order of imports, what an import loads, versions, documents."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped

import tddelta
from array_checker import arrays
from deep_runs import finished

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tddelta"

# Each part may import those before it in this line, and nothing after: design, "import order".
ORDER = (
    *("errors", "_plain", "_streams", "_answers", "_matplotlib", "timescales", "_arrays", "decomposition"),
    *("targets", "queries", "testing", "runs", "report", "adapters", "tabular", "deep", "experiments"),
    *("inspector", "paper", "cli", "__main__"),
)
# `from tddelta import compose` is an import of decomposition.
STUB = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
PUBLIC = {
    alias.name: node.module.split(".")[0]
    for node in STUB.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
# The report draws what is in run directories, and needs nothing that made them.
ONLY = {"report": {"errors", "_plain", "_matplotlib", "timescales", "decomposition", "runs"}}


def parts_imported(file: Path) -> set[str]:
    """Names of the parts of this package that a file imports, also inside functions."""
    package = ("tddelta", *file.relative_to(PACKAGE).parent.parts)
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            modules |= {f"{module}.{alias.name}" for alias in node.names}
    found = {module.split(".")[1] for module in modules if module.startswith("tddelta.")}
    return {PUBLIC.get(name, name) for name in found}


def parts() -> list[str]:
    """Every module and package right below the root package."""
    found = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in found if path.stem != "__init__")


@pytest.mark.parametrize("part", parts())
def test_parts_import_only_what_stands_before_them(part: str) -> None:
    assert part in ORDER, f"{part} is new: give it a place in ORDER"
    allowed = ONLY.get(part, set(ORDER[: ORDER.index(part)])) | {part, "__version__"}
    files = [PACKAGE / f"{part}.py"] if (PACKAGE / f"{part}.py").exists() else sorted((PACKAGE / part).rglob("*.py"))
    for file in files:
        forbidden = parts_imported(file) - allowed
        assert not forbidden, f"{file.relative_to(ROOT)} imports {sorted(forbidden)}, which stand after it"


def run_python(program: str) -> str:
    """Output of a program in a fresh process."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = (
    *("jax", "torch", "scipy", "matplotlib", "jinja2", "tyro", "rich", "pandas", "gymnax", "equinox", "safetensors"),
    "numba",
)


@pytest.mark.parametrize(
    "program",
    [
        "import tddelta",
        "import tddelta; tddelta.TimeScales; tddelta.compose; dir(tddelta)",
        "import tddelta.targets, tddelta.testing, numpy as np\n"
        "import tddelta as tdd\n"
        "flags = np.zeros(3, dtype=bool)\n"
        "tdd.lambda_targets(np.ones(3), np.zeros((3, 2)), np.zeros((3, 2)), terminated=flags, truncated=flags,\n"
        "                   scales=tdd.TimeScales.from_gammas([0.5, 0.9], lam=0.9))",
        "import tddelta.runs",
    ],
    ids=["package", "names", "targets", "runs"],
)
def test_import_loads_numpy_only(program: str) -> None:
    loaded = run_python(f"{program}\nimport sys; print(*sorted(m for m in {HEAVY} if m in sys.modules))").split()
    assert not loaded, f"loads {loaded}"


CLAUSES = {"how", "so", "what", "when", "where", "whether", "which", "who", "whose", "why"}


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples"])
def test_docstrings_begin_with_a_noun_phrase_or_an_imperative(folder: str) -> None:
    for file in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            # Also the texts below attributes, some of which are the help of options.
            if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
                first = re.findall(r"\w+", node.value.value)[:1]
                place = f"{file.relative_to(ROOT)}:{node.lineno}"
                assert not CLAUSES.intersection(map(str.lower, first)), f"{place} begins with {first[0]}"


# Compiled kernels that are in one piece, and say why.
LONG = {("tabular/n_step.py", "_learn")}


def test_functions_have_at_most_60_lines_of_code() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            code = node.body[ast.get_docstring(node) is not None :]
            lines = node.body[-1].end_lineno - code[0].lineno + 1 if code else 0
            place = file.relative_to(PACKAGE).as_posix()
            assert lines <= 60 or (place, node.name) in LONG, f"{node.name} in {place} has {lines} lines of code"


def test_every_public_name_resolves_and_is_listed() -> None:
    assert sorted(tddelta.__all__) == dir(tddelta)
    assert set(tddelta.__all__) == {*PUBLIC, "tabular", "testing"}
    for name in tddelta.__all__:
        assert getattr(tddelta, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No tddelta attribute lambda_target"):
        tddelta.lambda_target  # noqa: B018  (the access is the test)


def test_versions_agree() -> None:
    version = re.escape(tddelta.__version__)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    newest = next(
        line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    )
    assert re.search(rf"\b{version}\b", newest), f"the changelog's newest entry is {newest!r}"
    hooks, pins = ((ROOT / name).read_text(encoding="utf-8") for name in (".pre-commit-config.yaml", "constraints.txt"))
    assert re.search(r"rev: v(.+)", hooks)[1] == re.search(r"^ruff==(.+)", pins, re.MULTILINE)[1]


def test_pinned_versions_satisfy_the_project_file() -> None:
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    normal = {re.sub(r"[-_.]+", "-", name).lower() for name in pinned}
    for requirement in wanted:
        name = re.split(r"[\[<>=!~ ]", requirement)[0]
        assert name.lower() in normal, f"{name} is not in constraints.txt: run `make constraints`"


LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    if "_build" in page.parts:
        return
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in LINK.findall(text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_settings_in_the_documents_exist() -> None:
    from tddelta.deep.ppo import Config

    known = set(Config.__dataclass_fields__)
    table = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8").partition("## What differs")[0]
    cells = re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(named) > 10
    assert named <= known, f"no such settings: {sorted(named - known)}"


@pytest.mark.slow
def test_every_logged_metric_is_explained() -> None:
    run = finished()
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    explained = {re.sub("=.*", "", name) for name in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)}
    logged = {re.sub("=.*", "", name) for name in run.metrics}
    assert logged <= explained, f"docs/metrics.md does not explain {sorted(logged - explained)}"
    files = {path.name for path in run.path.iterdir() if not path.name.startswith(".")}
    assert files <= explained, f"docs/metrics.md does not explain {sorted(files - explained)}"


def test_the_test_run_checks_annotations_of_arrays_and_no_others() -> None:
    @jaxtyped(typechecker=arrays)
    def first(values: Float[np.ndarray, "T Z"], label: str) -> Float[np.ndarray, " T"]:
        return values[0] if label else values[:, 0]

    number: Any = 0
    assert first(np.ones((2, 3)), number).shape == (2,)
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        first(np.ones(3), "")
    with pytest.raises(TypeCheckError, match="checking the return value"):
        first(np.ones((2, 3)), "row")
    assert hasattr(tddelta.errors.printable, "__wrapped__"), "the import hook is on"
