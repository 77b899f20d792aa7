"""What MkDocs asks while it builds the site: pages from outside docs/, and the reference.

A link that leads nowhere, a page that no menu names, or a public name without a docstring ends the
build (`make site`).
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
    name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
}
# Types of arguments and results of public calls, beside `slipstream.NAME`, and other names that a
# guide imports.
BESIDE = {
    "What calls give": (
        "slipstream.rl.nets.policy.Policy",
        "slipstream.kernels.vector_env.VectorEnv",
        "slipstream.kernels.vector_env.StepBuffers",
        "slipstream.training.evaluation_result.EvaluationResult",
        "slipstream.training.evaluation_result.SplitResult",
        "slipstream.training.evaluation_result.MemberResult",
        "slipstream.training.episode_result.EpisodeResult",
        "slipstream.training.runs.run.MemberScore",
        "slipstream.training.runs.matches.MatchResult",
        "slipstream.training.runs.matches.BestResponse",
        "slipstream.rl.nets.onnx_graph.ExportResult",
        "slipstream.studies.record.folder.StudyFolder",
        "slipstream.studies.record.folder.StudyOutcome",
    ),
    "A policy without the rest": ("slipstream.portable",),
    "What listeners hear": ("slipstream.training.callbacks.events",),
    "What an environment of your own is made of": (
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
    "A market of your own": (
        "slipstream.core.timeline.FoldPlan",
        "slipstream.markets.folds.make_folds",
        "slipstream.markets.folds.fold_metadata",
        "slipstream.markets.synthetic.SyntheticCrypto",
        "slipstream.markets.features.feature_registry.Feature",
        "slipstream.markets.features.feature_registry.window_rows",
    ),
    "A package that plugs in": ("slipstream.report.page", "slipstream.report.run_page"),
    "An agent of your own": (
        "slipstream.rl.agents.agent.Agent",
        "slipstream.rl.agents.agent.AgentConfig",
        "slipstream.jit.rng.member_keys",
        "slipstream.jit.rng.keys_at_steps",
    ),
    "Copies in worker processes": (
        "slipstream.gym.foreign_env.ForeignEnv",
        "slipstream.kernels.vector_env.member_indices",
        "slipstream.gym.worker_config.EnvScheduler",
        "slipstream.gym.process.process_pool.WorkerPool",
    ),
    "As other libraries expect it": (
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
    """Adds what is written elsewhere: pages beside README.md, examples, the reference."""
    for name, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(ROOT / "CITATION.cff")))
    examples = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
    for path in examples:
        if "__pycache__" not in path.parts:
            name = str(path.relative_to(ROOT))
            files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "examples.md", content=_examples(examples)))
    files.append(File.generated(config, "reference/python.md", content=_reference()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them, and pictures for both colour schemes."""
    own = page.file.src_uri
    if own in PAGES.values():
        markdown = re.sub(r"(\]\(|=\")docs/", r"\1", markdown)  # links, and src="docs/..." of HTML
    elif not own.startswith("examples"):  # in docs/FOLDER: the site's root is one folder nearer
        markdown = re.sub(r"\]\(\.\./\.\./", "](../", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)examples/?\)", r"](\1examples.md)", markdown)

    # Drawn on white: in the dark site.css turns their lightness round, as reports do. Screenshots
    # of the dashboard and of a report stay, for these have a dark scheme themselves.
    drawn = r"(!\[[^\]]*\]\((?:\.\./)?figures/(?!dashboard-|report)[\w-]+\.png\))"
    return re.sub(drawn, r"\1{.drawn}", markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Without the colons by which docstrings announce a block of code."""
    return re.sub(r"(?:<p>::</p>|(?<=:):(?=</p>\s*<div class=\"highlight))", "", content)


def _examples(paths: list[Path]) -> str:
    """A page that says what each example shows, by the first line of its text."""
    lines = [
        "# Examples",
        "",
        "Each runs as it stands, from a checkout: `python examples/NAME`.",
        "",
    ]
    for path in paths:
        if path.suffix in (".py", ".sh", ".yaml") and "__pycache__" not in path.parts:
            found = re.search(r'^(?:"""|# )(.+?)(?:"""|$)', path.read_text("utf-8"), re.MULTILINE)
            name = path.relative_to(ROOT / "examples")
            lines.append(f"- [{name}](examples/{name}): {found[1] if found else ''}")
    return "\n".join(lines) + "\n"


def _reference() -> str:
    """Every public name, with its docstring; one without is refused."""
    lines = [
        "# Reference",
        "",
        "What `import slipstream` offers, then what that gives and takes.",
        "",
    ]
    lines += ["## slipstream", ""]
    for name in slipstream.__all__:
        if name != "__version__":
            found = getattr(slipstream, name)
            lines.append(_entry(f"{found.__module__}.{found.__qualname__}"))
    for title, places in BESIDE.items():
        lines += [f"## {title}", "", *map(_entry, places)]
    return "\n".join(lines)


def _entry(place: str) -> str:
    """What mkdocstrings makes a description of; everything public in it has a docstring."""
    for name, found in _public(place):
        if not inspect.getdoc(found):
            raise PluginError(f"{name} is public, and has no docstring.")
    return f"::: {place}\n"


def _public(place: str) -> list[tuple[str, object]]:
    """What is found at a dotted place, and its own public functions and classes."""
    module, _, name = place.rpartition(".")
    try:
        found: object = importlib.import_module(place)
    except ModuleNotFoundError:
        found = getattr(importlib.import_module(module), name)
    named = [(place, found)]
    own = place if inspect.ismodule(found) else getattr(found, "__module__", "")
    for key, member in (
        vars(found).items() if inspect.ismodule(found) or inspect.isclass(found) else ()
    ):
        member = getattr(member, "fget", member) or member
        member = getattr(member, "__func__", member)
        callable_here = inspect.isfunction(member) or inspect.isclass(member)
        if not key.startswith("_") and callable_here and member.__module__ == own:
            named.append((f"{place}.{key}", member))
    return named
