//! DeepDive on real questions: MuSiQue over its own and 2WikiMultiHopQA's passages, where `RAO_LOG_DATA` says that they
//! are.

use std::path::PathBuf;
use std::sync::Arc;

use rao_envs::deepdive::chain::filled;
use rao_envs::deepdive::search::LocalBm25;
use rao_envs::deepdive::{DeepDive, DeepDiveConfig, Musique};
use rao_envs::{Environment as _, Selection, Split};

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("RAO_LOG_DATA").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: RAO_LOG_DATA is not set");
    }
    folder
}

#[test]
fn chained_sub_questions_find_what_the_whole_question_does_not() {
    let Some(folder) = folder() else { return };
    let data = Musique::load(&Musique::folder(&folder).expect("multihop-qa in RAO_LOG_DATA")).unwrap();
    assert_eq!((data.questions.len(), data.corpus.pages().len()), (100, 8_009));
    let index = LocalBm25::new(Arc::clone(&data.corpus)).unwrap();
    let finds = |query: &str, page: &String| index.find(query, 5).unwrap().iter().any(|found| found.url == *page);
    let (mut hops, mut found, mut chained, mut at_once) = (0, 0, 0, 0);
    for question in &data.questions {
        let support: Vec<&String> = question.hops.iter().flat_map(|hop| &hop.pages).collect();
        assert_eq!(support.len(), question.hops.len(), "{}", question.id);
        let hits: Vec<bool> =
            (0..question.hops.len()).map(|at| finds(&filled(&question.hops, at).unwrap(), support[at])).collect();
        hops += hits.len();
        found += hits.iter().filter(|hit| **hit).count();
        chained += usize::from(hits.iter().all(|hit| *hit));
        at_once += usize::from(support.iter().all(|page| finds(&question.question, page)));
    }
    println!("{found} of {hops} hops, all of {chained} questions; by the question alone {at_once}");
    assert_eq!(hops, 237);
    assert!(chained >= 71 && found >= 203, "{chained} questions, {found} hops");
    assert!((10..=18).contains(&at_once), "{at_once}");
}

#[test]
fn its_questions_are_tasks_of_either_split_and_open_again() {
    let Some(folder) = folder() else { return };
    let env = DeepDive::new(DeepDiveConfig { data: Some(folder), ..DeepDiveConfig::default() }).unwrap();
    let all = |split| {
        let presets = ["2hop", "3hop", "4hop"].map(str::to_owned).to_vec();
        env.tasks(&Selection { presets, split, count: None, seed: 0 }).unwrap()
    };
    let (train, val) = (all(Split::Train), all(Split::Val));
    assert_eq!(train.len() + val.len(), 100);
    assert!(val.len() >= 10, "{}", val.len());
    assert!(train.iter().all(|task| val.iter().all(|other| other.id != task.id)));
    for task in train.iter().chain(&val) {
        assert_eq!(env.open_question(task).unwrap().hops().len().to_string(), task.difficulty[..1]);
    }
    let generated = DeepDive::new(DeepDiveConfig::default()).unwrap();
    let error = generated.open(&train[0]).err().unwrap().to_string();
    assert!(error.contains("--data"), "{error}");
}
