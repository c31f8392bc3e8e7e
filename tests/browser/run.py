"""`python3 dev.py browser`: the dashboard in a real browser, all of it.

python3 dev.py browser                 every text of the XSS corpus, axe over every page and form, and pictures
    --out FOLDER                       where the pictures go (.cache/pictures)
python3 dev.py browser --pictures      only the pictures
python3 dev.py browser --docs          the pictures of docs/pictures anew
python3 dev.py browser --million [N]   how soon pages are painted with a million jobs that have ended
"""

import argparse
import asyncio
import subprocess
import sys
from pathlib import Path

from tests.browser import million, pictures

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "pictures")
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--million", type=int, nargs="?", const=1_000_000, metavar="N")
    given = parser.parse_args()
    if given.million is not None:
        return asyncio.run(million.measure(given.million))
    code = 0
    if not (given.pictures or given.docs):
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/browser", "--long"], cwd=ROOT, check=False
        ).returncode
    wrong = asyncio.run(pictures.shoot(pictures.DOCS if given.docs else given.out, docs=given.docs))
    print(pictures.weight())
    print(*wrong, sep="\n")
    return code or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
