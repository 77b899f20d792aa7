"""MkDocs hooks of the site: pages from outside docs/ and the reference of the Python API.

A broken link, a page that is in no menu or a public name without a docstring ends the build
(`make site`).
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import slipstream

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md"} | {
    name: name
    for name in (
        *("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
        "CITATION.cff",  # a link's target, not a page
    )
}
# Types of arguments and results of public calls, and other names that a guide imports.
SECTIONS = {
    "Results and arguments": (
        "slipstream.rl.nets.policy.Policy",
        "slipstream.kernels.vector_env.VectorEnv",
        "slipstream.kernels.vector_env.StepBuffers",
        "slipstream.training.evaluation_result.EvaluationResult",
        "slipstream.training.evaluation_result.SplitResult",
        "slipstream.training.evaluation_result.MemberResult",
        "slipstream.training.episode_result.EpisodeResult",
        "slipstream.training.runs.run.MemberScore",
        "slipstream.training.runs.matches.GamesResult",
        "slipstream.training.runs.matches.MatchResult",
        "slipstream.training.runs.matches.BestResponse",
        "slipstream.rl.nets.onnx_graph.ExportResult",
        "slipstream.studies.record.folder.StudyFolder",
        "slipstream.studies.record.folder.StudyOutcome",
    ),
    "Policies without slipstream": ("slipstream.portable",),
    "Callback events": ("slipstream.training.callbacks.events",),
    "Custom environments": (
        "slipstream.core.config.Config",
        "slipstream.core.config.tunable",
        "slipstream.kernels.spec",
        "slipstream.kernels.kernel.KernelData",
        "slipstream.kernels.spec.TrainingContext",
        "slipstream.core.random",
        "slipstream.core.errors",
        "slipstream.kernels.kernel_registry.load_kernel",
        "slipstream.kernels.env_checker.check_environment",
    ),
    "Custom markets": (
        "slipstream.core.timeline.FoldPlan",
        "slipstream.markets.folds.make_folds",
        "slipstream.markets.folds.fold_metadata",
        "slipstream.markets.synthetic.SyntheticCrypto",
        "slipstream.markets.features.feature_registry.Feature",
        "slipstream.markets.features.feature_registry.window_rows",
    ),
    "Plugins": ("slipstream.report.page", "slipstream.report.run_page"),
    "Custom agents": (
        "slipstream.rl.agents.agent.Agent",
        "slipstream.rl.agents.agent.AgentConfig",
        "slipstream.jit.rng.member_keys",
        "slipstream.jit.rng.keys_at_steps",
    ),
    "Worker processes": (
        "slipstream.gym.foreign_env.ForeignEnv",
        "slipstream.kernels.vector_env.member_indices",
        "slipstream.gym.worker_config.EnvScheduler",
        "slipstream.gym.process.process_pool.WorkerPool",
    ),
    "Adapters and older systems": (
        "slipstream.adapters.registration",
        "slipstream.adapters.gymnasium_vector.ForeignVectorAdapter",
        "slipstream.adapters.elegantrl.ElegantEnv",
        "slipstream.adapters.elegantrl.env_args",
        "slipstream.compat.hockey_project.vectorized_env.HockeyPlayer",
        "slipstream.compat.hockey_project.vectorized_env.VectorizedHockeyEnv",
        "slipstream.compat.cappuccino.CryptoEnvAlpaca",
        "slipstream.compat.cappuccino.VectorizedCryptoEnvAlpaca",
        "slipstream.compat.cappuccino.VectorizedCryptoEnvAlpacaOptimized",
        "slipstream.compat.intraday.TrainerAgent",
        "slipstream.compat.intraday.TrainerCore",
        "slipstream.compat.intraday.EnvBuilder",
        "slipstream.compat.hockey_project.single_run.train_run",
        "slipstream.compat.hockey_project.single_run.train_single_run",
    ),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, the examples and the reference."""
    for name, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    examples = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
    for path in examples:
        if "__pycache__" not in path.parts:
            name = str(path.relative_to(ROOT))
            files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "examples.md", content=_examples(examples)))
    files.append(File.generated(config, "reference/python.md", content=_reference()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt links to the site's folders, and pictures to both colour schemes."""
    place = page.file.src_uri
    if place in PAGES.values():
        markdown = re.sub(r"(\]\(|=\")docs/", r"\1", markdown)  # links, and src="docs/..." of HTML
    elif not place.startswith("examples"):  # in docs/FOLDER: the site's root is one folder nearer
        markdown = re.sub(r"\]\(\.\./\.\./", "](../", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)examples/?\)", r"](\1examples.md)", markdown)

    # Charts are drawn on white; in the dark scheme site.css inverts their lightness. Screenshots of
    # the dashboard and of a report stay as they are.
    drawn = r"(!\[[^\]]*\]\((?:\.\./)?figures/(?!dashboard-|report)[\w-]+\.png\))"
    return re.sub(drawn, r"\1{.drawn}", markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the double colons before code blocks in docstrings."""
    return re.sub(r"(?:<p>::</p>|(?<=:):(?=</p>\s*<div class=\"highlight))", "", content)


def _examples(paths: list[Path]) -> str:
    """Return a page that lists the examples with the first line of their docstrings."""
    lines = [
        "# Examples",
        "",
        "Run them from a checkout: `python examples/NAME`.",
        "",
    ]
    for path in paths:
        if path.suffix in (".py", ".sh", ".yaml") and "__pycache__" not in path.parts:
            found = re.search(r'^(?:"""|# )(.+?)(?:"""|$)', path.read_text("utf-8"), re.MULTILINE)
            name = path.relative_to(ROOT / "examples")
            lines.append(f"- [{name}](examples/{name}): {found[1] if found else ''}")
    return "\n".join(lines) + "\n"


def _reference() -> str:
    """Return the page of the Python API: functions first, then classes, then older systems."""
    lines = [
        "# Python API",
        "",
        "The names of `import slipstream`, then the types of their arguments and results.",
        "",
        "## slipstream",
        "",
    ]
    members = [getattr(slipstream, name) for name in slipstream.__all__ if name != "__version__"]
    older = [member for member in members if ".compat." in member.__module__]
    members = sorted(
        (member for member in members if member not in older),
        key=lambda member: (inspect.isclass(member), member.__name__),
    )
    for member in members:
        lines.append(_entry(f"{member.__module__}.{member.__qualname__}"))
    for title, places in SECTIONS.items():
        lines += [f"## {title}", "", *map(_entry, places)]
    lines += ["## AgentTrainingService", ""]
    lines += [_entry(f"{member.__module__}.{member.__qualname__}") for member in older]
    return "\n".join(lines)


def _entry(place: str) -> str:
    """Return mkdocstrings' directive for a dotted place. All its public names have docstrings."""
    for name, member in _public(place):
        if not inspect.getdoc(member):
            raise PluginError(f"{name} is public and has no docstring. Write one.")
    return f"::: {place}\n"


def _public(place: str) -> list[tuple[str, object]]:
    """Return an object with its public functions and classes, by dotted name."""
    module, _, name = place.rpartition(".")
    try:
        target: object = importlib.import_module(place)
    except ModuleNotFoundError:
        target = getattr(importlib.import_module(module), name)
    public = [(place, target)]
    home = place if inspect.ismodule(target) else getattr(target, "__module__", "")
    has_members = inspect.ismodule(target) or inspect.isclass(target)
    for key, member in vars(target).items() if has_members else ():
        member = getattr(member, "fget", member) or member
        member = getattr(member, "__func__", member)
        is_callable = inspect.isfunction(member) or inspect.isclass(member)
        if not key.startswith("_") and is_callable and member.__module__ == home:
            public.append((f"{place}.{key}", member))
    return public
