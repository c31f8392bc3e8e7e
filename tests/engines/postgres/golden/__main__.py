"""Write the golden texts anew."""

from tests.engines.postgres.golden import FOLDER, texts

for old in FOLDER.glob("*.sql"):
    old.unlink()
for name, text in texts().items():
    (FOLDER / name).write_text(text, "utf-8")
