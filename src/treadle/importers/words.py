"""What the words of an application's states stand for."""

from treadle.app.profile import LABELS, Profile


def labels_of(profile: Profile) -> dict[str, str]:
    """What each of its words stands for: a label. A word that several have is the one that is a state by itself."""
    own = [labels[0] for labels in LABELS.values()]
    others = [label for labels in LABELS.values() for label in labels[1:]]
    found: dict[str, str] = {}
    for label in (*own, *others):
        found.setdefault(profile.word(label), label)
    return found
