//! Invented names that no two things share.

use std::collections::BTreeSet;

use crate::rng::Rng;

const STARTS: [&str; 20] =
    ["b", "br", "d", "dr", "f", "g", "h", "k", "kl", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z"];
const VOWELS: [&str; 8] = ["a", "e", "i", "o", "u", "ae", "ei", "ou"];
const ENDS: [&str; 12] = ["l", "n", "r", "s", "th", "nd", "rk", "m", "st", "v", "ld", "x"];

const FIRST_WORDS: [&str; 16] = [
    "Glass",
    "Silent",
    "Amber",
    "Hollow",
    "Crooked",
    "Winter",
    "Burning",
    "Paper",
    "Iron",
    "Drowned",
    "Golden",
    "Broken",
    "Distant",
    "Scarlet",
    "Sleeping",
    "Wandering",
];
const LAST_WORDS: [&str; 16] = [
    "Orchard",
    "Harbour",
    "Lantern",
    "Staircase",
    "Meadow",
    "Clockmaker",
    "Ferry",
    "Mirror",
    "Nightingale",
    "Garden",
    "Tower",
    "Winter Road",
    "Almanac",
    "Shepherd",
    "Bridge",
    "Inheritance",
];

/// Gives names away, each once.
pub(super) struct Names {
    rng: Rng,
    given: BTreeSet<String>,
}

impl Names {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::new("deepdive names", &[&seed.to_le_bytes()]), given: BTreeSet::new() }
    }

    fn syllables(&mut self, count: usize) -> String {
        let mut name = String::new();
        for at in 0..count {
            name.push_str(self.rng.pick(&STARTS).copied().unwrap_or_default());
            name.push_str(self.rng.pick(&VOWELS).copied().unwrap_or_default());
            if at + 1 == count {
                name.push_str(self.rng.pick(&ENDS).copied().unwrap_or_default());
            }
        }
        let mut letters = name.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
    }

    /// Draws until a name is new. No word of it has been part of another name, so that a search for one name does not
    /// find another by chance.
    fn fresh(&mut self, draw: impl Fn(&mut Self) -> String) -> String {
        loop {
            let name = draw(self);
            let words: Vec<String> = name.split(' ').map(str::to_ascii_lowercase).collect();
            if words.iter().all(|word| !self.given.contains(word)) {
                self.given.extend(words);
                return name;
            }
        }
    }

    pub(super) fn person(&mut self) -> String {
        self.fresh(|names| format!("{} {}", names.syllables(2), names.syllables(2)))
    }

    pub(super) fn town(&mut self) -> String {
        self.fresh(|names| names.syllables(2))
    }

    pub(super) fn river(&mut self) -> String {
        self.fresh(|names| names.syllables(2))
    }

    pub(super) fn country(&mut self) -> String {
        self.fresh(|names| format!("{}ia", names.syllables(2)))
    }

    pub(super) fn school(&mut self) -> String {
        let name = self.fresh(|names| names.syllables(2));
        let form = ["Academy", "College", "Institute", "Conservatory"];
        format!("{name} {}", self.rng.pick(&form).copied().unwrap_or_default())
    }

    pub(super) fn prize(&mut self) -> String {
        let name = self.fresh(|names| names.syllables(2));
        let form = ["Medal", "Prize", "Laurel"];
        format!("{name} {}", self.rng.pick(&form).copied().unwrap_or_default())
    }

    /// A title of two English words; there are 256, and a number tells further ones apart.
    pub(super) fn work(&mut self) -> String {
        for attempt in 0.. {
            let first = self.rng.pick(&FIRST_WORDS).copied().unwrap_or_default();
            let last = self.rng.pick(&LAST_WORDS).copied().unwrap_or_default();
            let title =
                if attempt < 64 { format!("The {first} {last}") } else { format!("The {first} {last} {attempt}") };
            if self.given.insert(title.to_ascii_lowercase()) {
                return title;
            }
        }
        String::new()
    }
}
