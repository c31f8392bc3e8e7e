"""A forked program is what subprocess would have started: pid, signals, pipes, place, exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import django_env, forks


@pytest.mark.parametrize("start", [subprocess.run, forks.run])
def test_it_has_its_own_words_folder_environment_and_streams(start, tmp_path: Path) -> None:
    place = {"cwd": tmp_path, "env": {**os.environ, "X": "1"}, "input": "given", "timeout": 60}
    more = {"capture_output": True, "text": True, "check": False} if start is subprocess.run else {}
    code = "import os, sys; print(os.getcwd(), sys.argv, sys.path[0], __name__, os.environ['X'], sys.stdin.read())"
    done = start([sys.executable, "-c", f"{code}; sys.exit('bad')", "word"], **place, **more)
    assert done.stdout == f"{tmp_path} ['-c', 'word']  __main__ 1 given\n"
    assert (done.returncode, done.stderr) == (1, "bad\n")


@pytest.mark.parametrize("start", [subprocess.Popen, forks.Popen])
def test_it_is_stopped_waited_for_and_killed_by_its_pid(start) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with start([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert int(process.stdout.readline()) == process.pid
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("start", [subprocess.run, forks.run])
def test_a_file_and_a_module_run_as_the_main_program(start, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import sys; print(__name__, sys.argv[1:], __file__.endswith('told.py'))")
    more = {"capture_output": True, "text": True, "check": False} if start is subprocess.run else {}
    for words in (["told.py"], ["-m", "told"]):
        done = start([sys.executable, *words, "word"], cwd=tmp_path, timeout=60, **more)
        assert (done.stdout, done.stderr) == ("__main__ ['word'] True\n", "")


@pytest.mark.parametrize("start", [subprocess.run, forks.run])
def test_a_warning_is_an_error_to_it_if_it_is_told_so(start) -> None:
    more = {"capture_output": True, "text": True, "check": False} if start is subprocess.run else {}
    code = "import sys, warnings; print(sys.warnoptions); warnings.warn('old'); print('went on')"
    strict = start([sys.executable, "-W", "error", "-c", code], timeout=60, **more)
    assert (strict.returncode, strict.stdout) == (1, "['error']\n")
    assert strict.stderr.endswith("UserWarning: old\n")
    assert start([sys.executable, "-c", code], timeout=60, **more).stdout == "[]\nwent on\n"


@pytest.mark.parametrize("kind", django_env.kinds())
def test_another_python_runs_what_is_meant_for_it(kind: str, tmp_path: Path) -> None:
    python = django_env.python(kind)
    (tmp_path / "manage.py").write_text(
        "import sys, django; print(sys.executable, sys.version_info[:2], django.VERSION)"
    )
    forked, started = (run([python, "manage.py"], cwd=tmp_path) for run in (forks.run, _started))
    assert forked.stdout == started.stdout != ""


def _started(command: list[str], **place: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, **place, capture_output=True, text=True, check=False)


ENDS = {
    "by itself": "print('last words')",
    "with a number": "sys.exit(300)",
    "with nothing": "sys.exit()",
    "with words": "sys.exit('bad')",
    "with an error": "1 / 0",
    "with a Ctrl-C": "raise KeyboardInterrupt",
    "with a handler": "atexit.register(print, 'handled'); sys.exit(3)",
    "with a thread": "threading.Thread(target=lambda: (time.sleep(0.1), print('done'))).start(); sys.exit(4)",
    "with a thread that goes on": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); sys.exit(5)",
    "with something of its own": "class Own:\n  def __del__(self): os.write(1, b'gone')\nown = Own()",
    "without its reader": "os.close(1); os.open('/dev/full', os.O_WRONLY); print('unheard')",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_it_ends_as_it_would_by_itself(code: str) -> None:
    command = [sys.executable, "-c", f"import atexit, os, sys, threading, time; print('begins', flush=True)\n{code}"]
    place = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    forked, started = forks.run(command, env=place), _started(command, env=place)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_an_option_of_python_is_refused() -> None:
    for words in ([sys.executable, "-I", "-c", ""], ["/bin/true", "-c", ""]):
        with pytest.raises(ValueError, match="use subprocess"):
            forks.run(words)
