"""The Tab key: what --install-completion writes, tried in a shell."""

import os
import shutil
import subprocess
import sys

import pytest

COMPLETE = """
source ~/.bashrc
tab() {
    COMP_WORDS=(hadaflow "$@"); COMP_CWORD=$#; COMPREPLY=()
    _hadaflow_completion "$(command -v hadaflow)"
    echo "${COMPREPLY[@]}"
}
tab so
tab solve --cl
tab solve --loss s
tab hunt l2 --seek r
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_what_is_installed_completes_in_bash(tmp_path):
    command = tmp_path / "bin" / "hadaflow"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hadaflow "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(tmp_path), "PATH": path}

    def bash(script):
        return subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout

    # A shell that has something else to do afterwards stays the parent of the command.
    told = bash("hadaflow --install-completion; echo done")
    assert told.startswith("bash completion installed in ") and told.endswith("done\n")
    assert {p.name for p in tmp_path.iterdir()} == {"bin", ".bashrc", ".bash_completions"}
    assert bash(COMPLETE).splitlines() == ["solve", "--classes", "squared_hinge siglip", "rise"]


def test_completing_imports_no_jax():
    code = (
        "import sys\nfrom hadaflow.cli.commands import main\n"
        "try:\n    main()\nfinally:\n    assert 'jax' not in sys.modules, 'jax'\n"
    )
    asked = {
        "_HADAFLOW_COMPLETE": "complete_bash",
        "COMP_WORDS": "hadaflow cert",
        "COMP_CWORD": "1",
    }
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout.split(), found.stderr) == (0, ["certify"], "")
