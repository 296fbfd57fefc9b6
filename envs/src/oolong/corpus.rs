//! Real dialogue as episodes: transcripts of CRD3, as Oolong-Real builds its windows from them, and plays, whose acts are
//! the episodes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use md5::{Digest as _, Md5};
use serde::Deserialize;
use uuid::Uuid;

use super::transcript::{Episode, Player, capitalize};
use crate::EnvError;

/// A series of episodes: a campaign, or a play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name in ids: `campaign2`, or a play's file name.
    pub name: String,
    /// Who plays whom; empty for plays.
    pub players: Vec<Player>,
    /// Its episodes by number.
    pub episodes: Vec<Episode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
struct Transcript {
    turns: Vec<Turn>,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
struct Turn {
    names: Vec<String>,
    utterances: Vec<String>,
}

/// The id of a question about some episodes of a series: the MD5 of series, question and episodes, as a UUID.
#[must_use]
pub fn question_id(series: &str, question: &str, episodes: &[u32]) -> String {
    let numbers: Vec<String> = episodes.iter().map(u32::to_string).collect();
    let digest: [u8; 16] = Md5::digest(format!("{series}{question}{}", numbers.join("_"))).into();
    Uuid::from_bytes(digest).to_string()
}

/// The id of a window: that of a question without its text.
#[must_use]
pub fn window_id(series: &str, episodes: &[u32]) -> String {
    question_id(series, "", episodes)
}

/// An episode of CRD3: each name of a turn says all of the turn's utterances, joined by spaces.
///
/// # Errors
/// When the bytes are no transcript.
pub fn read_crd3(bytes: &[u8], number: u32) -> Result<Episode, serde_json::Error> {
    let transcript: Transcript = serde_json::from_slice(bytes)?;
    let mut text = String::new();
    for turn in &transcript.turns {
        let words = turn.utterances.join(" ").replace('\n', " ");
        for name in &turn.names {
            text.push_str(&capitalize(name));
            text.push_str(": ");
            text.push_str(&words);
            text.push('\n');
        }
    }
    Ok(Episode { number, text: text.into() })
}

/// The acts of a play: a speaker's name and a full stop on the first line of a paragraph, the speech below it. Stage
/// directions, in brackets, are left out.
#[must_use]
pub fn read_play(text: &str) -> Vec<Episode> {
    let mut acts: Vec<String> = Vec::new();
    let text = text.replace('\r', "");
    for paragraph in text.split("\n\n") {
        let mut lines = paragraph.lines().map(str::trim).filter(|line| !line.is_empty());
        let Some(first) = lines.next() else { continue };
        if is_act(first) {
            acts.push(String::new());
            continue;
        }
        let Some(act) = acts.last_mut() else { continue };
        let speech = without_directions(&lines.collect::<Vec<_>>().join(" "));
        let speaker = first.strip_suffix('.').filter(|name| name.chars().count() <= 30 && !name.starts_with('['));
        if let (Some(speaker), false) = (speaker, speech.is_empty() || is_scene(first)) {
            act.push_str(&format!("{}: {speech}\n", capitalize(speaker)));
        }
    }
    acts.into_iter().zip(1..).map(|(text, number)| Episode { number, text: text.into() }).collect()
}

fn is_act(line: &str) -> bool {
    let numeral =
        line.strip_prefix("ACT ").or_else(|| line.strip_prefix("Act ")).and_then(|rest| rest.strip_suffix('.'));
    numeral.is_some_and(|numeral| !numeral.is_empty() && numeral.chars().all(|c| matches!(c, 'I' | 'V')))
}

fn is_scene(line: &str) -> bool {
    line.to_uppercase().starts_with("SCENE")
}

fn without_directions(text: &str) -> String {
    let mut out = String::new();
    let mut depth = 0_u32;
    for c in text.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a folder holds dialogue that [`load`] reads.
#[must_use]
pub(super) fn is_corpus(folder: &Path) -> bool {
    files(folder).is_ok_and(|files| files.iter().any(|file| crd3_number(file).is_some() || is_play(file)))
}

/// The series in a folder, by name: transcripts of CRD3 named like `C2E001.json`, with `characters_campaignN.tsv` beside
/// them, and plays, `*.txt`.
///
/// # Errors
/// When a file cannot be read, or the folder holds no dialogue.
pub fn load(folder: &Path) -> Result<Vec<Series>, EnvError> {
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for file in files(folder)? {
        let bytes = || fs::read(&file).map_err(|error| failed(&file, error));
        if let Some((campaign, number)) = crd3_number(&file) {
            let name = format!("campaign{campaign}");
            let episode = read_crd3(&bytes()?, number).map_err(|error| failed(&file, error))?;
            let series = match all.get_mut(&name) {
                Some(series) => series,
                None => {
                    let players = players(&folder.join(format!("characters_{name}.tsv")))?;
                    all.entry(name.clone()).or_insert(Series { name, players, episodes: Vec::new() })
                }
            };
            series.episodes.push(episode);
        } else if is_play(&file) {
            let text = String::from_utf8_lossy(&bytes()?).into_owned();
            let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            let episodes = read_play(&text);
            if !episodes.is_empty() {
                all.insert(name.clone(), Series { name, players: Vec::new(), episodes });
            }
        }
    }
    if all.is_empty() {
        let reason = "it holds neither transcripts such as C2E001.json nor plays such as hamlet.txt";
        return Err(EnvError::Data { file: folder.display().to_string(), reason: reason.to_owned() });
    }
    let mut all: Vec<Series> = all.into_values().collect();
    all.iter_mut().for_each(|series| series.episodes.sort_by_key(|episode| episode.number));
    Ok(all)
}

fn failed(file: &Path, error: impl ToString) -> EnvError {
    EnvError::Data { file: file.display().to_string(), reason: error.to_string() }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, EnvError> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, error))?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.map_err(|error| failed(folder, error))?.path());
    }
    files.sort();
    Ok(files)
}

/// Campaign and episode in a name such as `C2E001.json`.
fn crd3_number(file: &Path) -> Option<(u32, u32)> {
    let name = file.file_name()?.to_str()?;
    let (campaign, episode) = name.strip_suffix(".json")?.strip_prefix('C')?.split_once('E')?;
    Some((campaign.parse().ok()?, episode.parse().ok()?))
}

fn is_play(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "txt")
}

/// A table of players: a heading, then player, character and notes between tabs; `NA` plays what has no player.
fn players(file: &Path) -> Result<Vec<Player>, EnvError> {
    if !file.is_file() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(file).map_err(|error| failed(file, error))?;
    let mut players = Vec::new();
    for line in text.lines().skip(1) {
        let mut cells = line.split('\t');
        if let (Some(player), Some(character)) = (cells.next(), cells.next())
            && player != "NA"
            && !character.is_empty()
        {
            players.push(Player { player: player.to_owned(), character: character.to_owned() });
        }
    }
    Ok(players)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_said_by_each_of_their_names() {
        let json =
            br#"{"METADATA": {}, "TURNS": [{"NAMES": ["SAM", "LIAM"], "UTTERANCES": ["One", "two."], "NUMBER": 0}]}"#;
        assert_eq!(read_crd3(json, 4).unwrap().text, "Sam: One two.\nLiam: One two.\n");
        assert!(read_crd3(b"{}", 1).is_err());
    }

    #[test]
    fn acts_are_episodes() {
        let play = "HAMLET\n\nACT I.\n\nScene I. Elsinore.\n\n[Enter Ber.]\n\nBer.\nWho's\nthere? [Aside.]\n\nFIRST WITCH.\nAll: hail!\n\nAct II.\n\nHam.\nWords.\n";
        let acts = read_play(play);
        assert_eq!(acts.iter().map(|act| act.number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(acts[0].text, "Ber: Who's there?\nFirst witch: All: hail!\n");
        assert_eq!(acts[1].text, "Ham: Words.\n");
    }
}
