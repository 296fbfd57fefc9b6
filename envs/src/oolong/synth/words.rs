//! The invented game's words.

/// Who leads the game.
pub(super) const GUIDE: &str = "Odile";

/// Players and their characters.
pub(super) const CAST: [(&str, &str); 9] = [
    ("Tess", "Brannoc"),
    ("Ivo", "Sorrel"),
    ("Maren", "Dusk"),
    ("Pavel", "Old Yarrow"),
    ("Nadia", "Quill"),
    ("Bram", "Thessaly"),
    ("Yuki", "Corvane"),
    ("Dov", "Mirelle"),
    ("Ana", "Hob"),
];

/// What dice are rolled for.
pub(super) const CHECKS: [&str; 12] = [
    "Perception",
    "Stealth",
    "Initiative",
    "Attack",
    "Persuasion",
    "Insight",
    "Athletics",
    "Arcana",
    "Deception",
    "Survival",
    "Acrobatics",
    "History",
];

/// Spells with their level; 0 is a cantrip.
pub(super) const SPELLS: [(&str, u32); 16] = [
    ("Emberlash", 0),
    ("Glimmer", 0),
    ("Whisperthread", 0),
    ("Frost Kiss", 0),
    ("Mend the Breath", 1),
    ("Bramble Snare", 1),
    ("Silver Tongue", 1),
    ("Veil of Soot", 2),
    ("Stonewake", 2),
    ("Moth Swarm", 2),
    ("Tidecall", 3),
    ("Cinder Rain", 3),
    ("Hollow Step", 4),
    ("Crown of Thorns", 4),
    ("Grave Lantern", 5),
    ("Skybreak", 5),
];

/// A sentence of filler: one choice from each list.
pub(super) const FILLER_PARTS: [&[&str]; 4] = [
    &[
        "All right, so ",
        "Meanwhile, ",
        "I think ",
        "Before anything else, ",
        "You know what, ",
        "As the fog lifts, ",
        "Fine, but ",
        "Honestly, ",
        "A little later, ",
        "For the record, ",
    ],
    &[
        "the innkeeper ",
        "that old ferryman ",
        "the whole market square ",
        "somebody's cousin ",
        "the bridge behind us ",
        "our cart ",
        "the magistrate ",
        "every lantern on the pier ",
        "the tall stranger ",
        "the mule ",
    ],
    &[
        "keeps looking ",
        "leans over and points ",
        "has been waiting ",
        "slowly turns ",
        "owes us an answer ",
        "still smells of smoke ",
        "nods ",
        "goes quiet ",
        "wants to be paid ",
        "creaks and settles ",
    ],
    &[
        "toward the river.",
        "as if nothing had happened.",
        "since the last bell.",
        "near the broken gate.",
        "and nobody says a word.",
        "before the rain starts again.",
        "about the letter we found.",
        "while the others unload.",
        "on the far side of the yard.",
        "for the third time today.",
    ],
];
