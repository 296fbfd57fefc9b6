//! Transcripts: lines of the form `Name: what is said`, and windows of episodes made of them.

use crate::Text;

/// Stands before an episode's lines.
pub(super) const START: &str = "[START OF EPISODE]";

/// Stands behind them.
pub(super) const END: &str = "[END OF EPISODE]";

/// The longest name of a speaker, in characters.
const LONGEST_NAME: usize = 40;

/// One line of dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Where it begins, in bytes of the text.
    pub at: usize,
    /// Who speaks.
    pub speaker: &'a str,
    /// What is said.
    pub words: &'a str,
}

/// The lines of dialogue of a text, in order. Other lines, such as markers and instructions, are passed over. The first and
/// the last line of a piece of a text may be cut; a line is one if what is there of it still has its name.
pub fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut at = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let here = at;
        at += line.len();
        let (speaker, words) = line.split_once(": ").or_else(|| Some((line.trim_end().strip_suffix(':')?, "")))?;
        is_name(speaker).then(|| Line { at: here, speaker, words: words.trim_end_matches('\n') })
    })
}

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|first| first.is_uppercase() || first.is_ascii_digit())
        && text.chars().count() <= LONGEST_NAME
        && chars.all(|c| c.is_alphanumeric() || matches!(c, ' ' | '.' | '\'' | '\u{2019}' | '-' | ','))
}

/// A name as Oolong writes it: the first letter as a capital, all others small, as Python's `capitalize` does.
#[must_use]
pub(super) fn capitalize(name: &str) -> String {
    let mut chars = name.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars.as_str().to_lowercase().chars()).collect(),
        None => String::new(),
    }
}

/// One episode, such as an evening of play or an act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// Its number, by which ids and questions name it.
    pub number: u32,
    /// Lines `Name: words`, each with its line end.
    pub text: Text,
}

/// Who plays whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Player {
    /// Whose name stands before the lines.
    pub player: String,
    /// Who is played.
    pub character: String,
}

/// The text of a window: what is asked for, who plays whom, and the episodes between their markers.
#[must_use]
pub fn window(players: &[Player], episodes: &[Episode]) -> String {
    let size: usize = episodes.iter().map(|episode| episode.text.len() + 50).sum();
    let mut out = String::with_capacity(size + 400 + 60 * players.len());
    let one = episodes.len() == 1;
    out.push_str(&format!(
        "The following lines are the transcript of {}. Answer the question about {} that is asked with it. Return the \
         final answer in \\boxed{{}}.\n",
        if one { "one episode".to_owned() } else { format!("{} episodes", episodes.len()) },
        if one { "it" } else { "them" },
    ));
    for Player { player, character } in players {
        out.push_str(&format!("{player} plays the character {character}.\n"));
    }
    for episode in episodes {
        out.push_str(START);
        out.push('\n');
        out.push_str(&episode.text);
        out.push_str(END);
        out.push('\n');
    }
    out
}

/// Where the `count`-th episode of a window ends: behind its marker, in bytes. `None` if it has fewer.
#[must_use]
pub(super) fn episode_end(text: &str, count: usize) -> Option<usize> {
    let marker = text.match_indices(END).nth(count.checked_sub(1)?)?;
    Some(marker.0 + END.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dialogue_is_a_line() {
        let text = "Matt plays the character DM.\n[START OF EPISODE]\nMatt: Hello: all.\nLiam o'brien: (laughs)\nand so: no\n\
                    Sam:\n1 clown: Argal.\n[END OF EPISODE]\n";
        let got: Vec<_> = lines(text).map(|line| (line.speaker, line.words)).collect();
        let expected = [("Matt", "Hello: all."), ("Liam o'brien", "(laughs)"), ("Sam", ""), ("1 clown", "Argal.")];
        assert_eq!(got, expected);
        for line in lines(text) {
            assert!(text[line.at..].starts_with(line.speaker));
        }
        assert_eq!(capitalize("PATRICK ROTHFUSS"), "Patrick rothfuss");
    }

    #[test]
    fn windows_hold_their_episodes_in_order() {
        let episode = |number, text: &str| Episode { number, text: text.into() };
        let players = [Player { player: "Ann".into(), character: "Orc".into() }];
        let text = window(&players, &[episode(3, "Ann: a\n"), episode(4, "Bo: b\n")]);
        assert!(text.contains("Ann plays the character Orc.\n[START OF EPISODE]\nAnn: a\n[END OF EPISODE]\n[START"));
        let first = episode_end(&text, 1).unwrap();
        assert!(text[..first].ends_with("Ann: a\n[END OF EPISODE]"));
        assert_eq!(lines(&text[..first]).count(), 1);
        assert_eq!((episode_end(&text, 2), episode_end(&text, 3)), (Some(text.len() - 1), None));
        assert_eq!(lines(&text).count(), 2);
    }
}
