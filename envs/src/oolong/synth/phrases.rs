//! How events are told, and how events that never happen are spoken of.

use super::words::{CHECKS, GUIDE, SPELLS};
use super::{Cast, Roll};
use crate::oolong::transcript::Player;
use crate::rng::Rng;

/// Who is at the table.
pub(super) struct Scene<'a> {
    pub(super) players: &'a [Player],
}

impl Scene<'_> {
    fn names(&self, player: usize) -> (&str, &str) {
        self.players.get(player).map_or(("", ""), |player| (&player.player, &player.character))
    }

    /// Tells a roll; where the line that it belongs to begins, in bytes of `text`.
    pub(super) fn roll(&self, rng: &mut Rng, roll: &Roll, text: &mut String) -> usize {
        let (player, character) = self.names(roll.player);
        let (check, total, natural) = (roll.check, roll.total, roll.natural);
        let small = check.to_lowercase();
        let die = match natural {
            20 if rng.below(2) == 0 => "natural twenty".to_owned(),
            1 if rng.below(2) == 0 => "natural one".to_owned(),
            _ => format!("{natural} on the die"),
        };
        let line = match rng.below(6) {
            0 => format!("{player}: {check} for {character}: a {die}, so {total} all in."),
            1 => format!("{player}: I rolled {small} and got a {die}. With everything that makes {total}."),
            2 => format!("{player}: (dice clatter) That is a {die}, {total} total on {small}."),
            3 => format!("{GUIDE}: {character} tries {small}, and {player} shows me a {die}; that comes to {total}."),
            4 => {
                text.push_str(&format!("{GUIDE}: Give me {small}, {character}.\n"));
                format!("{player}: A {die}. {total}.")
            }
            _ => {
                text.push_str(&format!("{player}: Can {character} do {small} here?\n{GUIDE}: Go ahead.\n"));
                format!("{player}: {total}, from a {die}.")
            }
        };
        push(text, &line)
    }

    /// Tells a spell; where the line that it belongs to begins.
    pub(super) fn cast(&self, rng: &mut Rng, cast: &Cast, text: &mut String) -> usize {
        let (player, character) = self.names(cast.player);
        let Cast { spell, base, level, .. } = cast;
        let how = match (base, level > base) {
            (0, _) => ", just the cantrip".to_owned(),
            (_, true) => format!(" with a slot of level {level} instead of {base}"),
            (_, false) => format!(" at level {level}"),
        };
        let line = match rng.below(4) {
            0 => format!("{player}: {character} casts {spell}{how}."),
            1 => format!("{player}: Okay, I spend my action on {spell}{how}."),
            2 => format!("{GUIDE}: So {character} lets {spell} loose{how}, and the air hums."),
            _ => {
                text.push_str(&format!("{GUIDE}: What does {character} do?\n"));
                format!("{player}: {spell}{how}. I am casting it now.")
            }
        };
        push(text, &line)
    }

    /// Speaks of a roll or a spell that does not happen.
    pub(super) fn near_miss(&self, rng: &mut Rng, text: &mut String) {
        let player = rng.below(self.players.len() as u64) as usize;
        let (player, character) = self.names(player);
        let check = rng.pick(&CHECKS).copied().unwrap_or("Stealth").to_lowercase();
        let spell = rng.pick(&SPELLS).map_or("Glimmer", |(spell, _)| spell);
        let number = rng.range(2, 25);
        let line = match rng.below(8) {
            0 => format!("{player}: Should I roll {check} for this? No? Good."),
            1 => format!("{GUIDE}: You would need more than {number} on {check}, so do not even try."),
            2 => format!("{player}: Last week I rolled a natural twenty on {check}, remember?"),
            3 => format!("{player}: I could cast {spell}, but I am saving it."),
            4 => format!("{GUIDE}: The old book mentions {spell}; nobody here has ever seen it cast."),
            5 => format!("{player}: If {character} had a {number} on {check} we would be home by now."),
            6 => format!("{GUIDE}: No {check} needed, {character}. It simply works."),
            _ => format!("{player}: Does {spell} even reach that far? Never mind, I won't."),
        };
        push(text, &line);
    }
}

fn push(text: &mut String, line: &str) -> usize {
    let at = text.len();
    text.push_str(line);
    text.push('\n');
    at
}
