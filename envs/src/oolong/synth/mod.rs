//! Synthetic evenings of play: dialogue with an event log. The game, its players, characters and spells are invented.
//!
//! An event stands in one line, or in two of which the last one decides where it belongs. Several templates phrase each
//! kind, so that no single pattern catches all; other lines speak of rolls and spells that never happen.

mod phrases;
mod words;

use serde::{Deserialize, Serialize};

use self::phrases::Scene;
use self::words::{CAST, CHECKS, FILLER_PARTS, SPELLS};
use super::query::{Noun, Record};
use super::transcript::{self, Episode, Player};
use crate::Text;
use crate::rng::Rng;

/// A size of synthetic windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name on the command line: about how many tokens a window has.
    pub name: &'static str,
    /// Characters of a window, at about four to a token.
    pub chars: usize,
    /// The fewest and most episodes.
    pub episodes: (u32, u32),
}

/// The presets, the smallest first. `175k` is the size of the longest windows that the authors report on.
pub const PRESETS: [Preset; 5] = [
    Preset { name: "2k", chars: 8_000, episodes: (1, 1) },
    Preset { name: "8k", chars: 32_000, episodes: (1, 2) },
    Preset { name: "32k", chars: 128_000, episodes: (1, 4) },
    Preset { name: "128k", chars: 512_000, episodes: (2, 8) },
    Preset { name: "175k", chars: 700_000, episodes: (3, 8) },
];

/// What a window is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Decides everything else.
    pub seed: u64,
    /// Characters of the window, about.
    pub chars: usize,
    /// Its episodes.
    pub episodes: u32,
}

/// A die that was rolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Roll {
    pub(super) player: usize,
    pub(super) check: &'static str,
    pub(super) natural: u32,
    pub(super) total: u32,
}

/// A spell that was cast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cast {
    pub(super) player: usize,
    pub(super) spell: &'static str,
    pub(super) base: u32,
    pub(super) level: u32,
}

/// A window with its events.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// The text.
    pub text: Text,
    /// The dice, in order.
    pub rolls: Vec<Record>,
    /// The spells, in order.
    pub spells: Vec<Record>,
    /// Who plays.
    pub players: Vec<Player>,
}

impl Window {
    /// The events of a kind.
    #[must_use]
    pub fn records(&self, noun: Noun) -> &[Record] {
        match noun {
            Noun::Rolls => &self.rolls,
            Noun::Spells => &self.spells,
            Noun::Turns | Noun::Words | Noun::Phrase => &[],
        }
    }
}

/// Makes a window.
#[must_use]
pub fn generate(recipe: &Recipe) -> Window {
    let mut rng = Rng::new("oolong window", &[&recipe.seed.to_le_bytes()]);
    let mut cast: Vec<(&str, &str)> = CAST.to_vec();
    rng.shuffle(&mut cast);
    cast.truncate(5);
    let players: Vec<Player> = cast
        .iter()
        .map(|(player, character)| Player { player: (*player).into(), character: (*character).into() })
        .collect();
    let episodes = recipe.episodes.max(1);
    let each = recipe.chars / episodes as usize;
    let (mut made, mut events) = (Vec::new(), Vec::new());
    for number in 1..=episodes {
        let (text, own) = episode(&mut rng, &players, each);
        made.push(Episode { number, text: text.into() });
        events.push(own);
    }
    let text = transcript::window(&players, &made);
    let mut window = Window { text: text.into(), rolls: Vec::new(), spells: Vec::new(), players };
    // Each episode's lines begin behind its marker.
    let begins: Vec<usize> =
        window.text.match_indices(transcript::START).map(|(at, marker)| at + marker.len() + 1).collect();
    for (begin, events) in begins.into_iter().zip(events) {
        for (at, event) in events {
            match event {
                Event::Roll(roll) => {
                    let record = roll.record(begin + at, &window.players);
                    window.rolls.push(record);
                }
                Event::Cast(cast) => {
                    let record = cast.record(begin + at, &window.players);
                    window.spells.push(record);
                }
            }
        }
    }
    window
}

enum Event {
    Roll(Roll),
    Cast(Cast),
}

impl Roll {
    fn record(&self, at: usize, players: &[Player]) -> Record {
        let mut fields = who(self.player, players);
        fields.push(("type", self.check.to_owned()));
        fields.push(("total", self.total.to_string()));
        fields.push(("natural", self.natural.to_string()));
        Record { at, weight: 1, fields }
    }
}

impl Cast {
    fn record(&self, at: usize, players: &[Player]) -> Record {
        let yes = |truth: bool| if truth { "yes" } else { "no" }.to_owned();
        let mut fields = who(self.player, players);
        fields.push(("spell", self.spell.to_owned()));
        fields.push(("base", self.base.to_string()));
        fields.push(("cast", self.level.to_string()));
        fields.push(("cantrip", yes(self.base == 0)));
        fields.push(("upcast", yes(self.level > self.base)));
        Record { at, weight: 1, fields }
    }
}

fn who(player: usize, players: &[Player]) -> Vec<(&'static str, String)> {
    let Some(Player { player, character }) = players.get(player) else { return Vec::new() };
    vec![("player", player.clone()), ("character", character.clone())]
}

/// One episode's lines, and its events with the byte of the line that each belongs to.
fn episode(rng: &mut Rng, players: &[Player], chars: usize) -> (String, Vec<(usize, Event)>) {
    let mut text = String::with_capacity(chars + 400);
    let mut events = Vec::new();
    while text.len() < chars {
        for _ in 0..rng.range(1, 5) {
            filler(rng, players, &mut text);
        }
        let scene = Scene { players };
        match rng.below(10) {
            0..=4 => {
                let roll = roll(rng, players.len());
                let at = scene.roll(rng, &roll, &mut text);
                events.push((at, Event::Roll(roll)));
            }
            5 | 6 => {
                if let Some(cast) = cast(rng, players.len()) {
                    let at = scene.cast(rng, &cast, &mut text);
                    events.push((at, Event::Cast(cast)));
                }
            }
            _ => scene.near_miss(rng, &mut text),
        }
    }
    (text, events)
}

fn roll(rng: &mut Rng, players: usize) -> Roll {
    let player = rng.below(players as u64) as usize;
    // Twenties and ones are what questions ask for, so they come a little more often than dice give them.
    let natural = match rng.below(12) {
        0 => 20,
        1 => 1,
        _ => rng.range(1, 20) as u32,
    };
    let bonus = rng.range(0, 9) as u32;
    let check = rng.pick(&CHECKS).copied().unwrap_or("Stealth");
    Roll { player, check, natural, total: natural + bonus }
}

fn cast(rng: &mut Rng, players: usize) -> Option<Cast> {
    let player = rng.below(players as u64) as usize;
    let (spell, base) = rng.pick(&SPELLS).copied()?;
    let up = if base > 0 && rng.below(4) == 0 { rng.range(1, 2) as u32 } else { 0 };
    Some(Cast { player, spell, base, level: base + up })
}

fn filler(rng: &mut Rng, players: &[Player], text: &mut String) {
    let is_guide = rng.below(3) == 0;
    let speaker = if is_guide { words::GUIDE } else { rng.pick(players).map_or(words::GUIDE, |p| p.player.as_str()) };
    text.push_str(speaker);
    text.push_str(": ");
    let sentences = if is_guide { rng.range(1, 4) } else { rng.range(1, 2) };
    for sentence in 0..sentences {
        if sentence > 0 {
            text.push(' ');
        }
        for parts in FILLER_PARTS {
            text.push_str(rng.pick(parts).copied().unwrap_or_default());
        }
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(seed: u64) -> Recipe {
        Recipe { seed, chars: 20_000, episodes: 3 }
    }

    #[test]
    fn windows_follow_from_their_seed() {
        let window = generate(&recipe(1));
        assert_eq!(window, generate(&recipe(1)));
        assert_ne!(window.text, generate(&recipe(2)).text);
        assert!((20_000..24_000).contains(&window.text.len()), "{}", window.text.len());
        assert!(window.rolls.len() > 20 && window.spells.len() > 5, "{} {}", window.rolls.len(), window.spells.len());
    }

    #[test]
    fn every_event_stands_in_its_line() {
        let window = generate(&recipe(3));
        let field = |record: &Record, name: &str| {
            record.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()).unwrap()
        };
        for record in &window.rolls {
            let line = window.text[record.at..].lines().next().unwrap();
            assert!(line.contains(&field(record, "total")), "{line}");
            let around = &window.text[record.at.saturating_sub(200)..record.at + line.len()];
            assert!(around.to_lowercase().contains(&field(record, "type").to_lowercase()), "{around}");
        }
        for record in &window.spells {
            let line = window.text[record.at..].lines().next().unwrap();
            assert!(line.contains(&field(record, "spell")), "{line}");
        }
        let mut lines = window.text.lines();
        assert!(lines.all(|line| line.len() < 1_200));
    }
}
