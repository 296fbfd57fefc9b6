//! Generated questions: one answer each, and a way to it that a search finds.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use rao_envs::deepdive::chain::{compose, filled, filled_also, recognise};
use rao_envs::deepdive::kg::{GraphConfig, Kind, RELATIONS, World};
use rao_envs::deepdive::{DeepDive, DeepDiveConfig};
use rao_envs::{Environment as _, Selection, Split, Task};

fn env() -> DeepDive {
    DeepDive::new(DeepDiveConfig::default()).unwrap()
}

fn tasks(env: &DeepDive, preset: &str, split: Split, count: usize, seed: u64) -> Vec<Task> {
    let presets = vec![preset.to_owned()];
    env.tasks(&Selection { presets, split, count: Some(count), seed }).unwrap()
}

#[test]
fn walks_have_one_answer_and_pages_that_tell_it() {
    let env = env();
    for (preset, length) in [("2hop", 2), ("4hop", 4), ("6hop", 6), ("9hop", 9)] {
        for task in tasks(&env, preset, Split::Train, 8, 3) {
            let body = &task.body;
            let config: GraphConfig = serde_json::from_value(body["pages"]["graph"].clone()).unwrap();
            let world = World::new(&config).unwrap();
            let question = body["question"].as_str().unwrap();
            let answers = world.graph.answers(question).unwrap();
            let labels: Vec<String> = answers.iter().map(|&node| world.graph.label(node)).collect();
            assert_eq!(labels, [body["answer"].as_str().unwrap()], "{question}");
            let episode = env.open_question(&task).unwrap();
            let hops = episode.hops();
            assert_eq!(hops.len(), length);
            for (at, hop) in hops.iter().enumerate() {
                let corpus = world.index.corpus();
                let page = corpus.find(&hop.pages[0]).unwrap();
                assert!(page.text.contains(&hop.answer), "{question}: hop {at}: {}", page.text);
                for asked in [filled(hops, at).unwrap(), filled_also(hops, at).unwrap()] {
                    let answers = world.graph.answers(&asked).unwrap();
                    assert!(answers.iter().any(|&node| world.graph.label(node) == hop.answer), "{asked}");
                    assert_eq!(recognise(hops, &asked), Some(at..at + 1), "{asked}");
                }
            }
            // The answer stands nowhere in the question, nor does any entity on the way.
            assert!(hops.iter().all(|hop| !question.contains(&hop.answer)), "{question}");
            assert_eq!(compose(hops, 0..length).unwrap(), question);
        }
    }
}

#[test]
fn equal_seeds_give_equal_questions_and_splits_never_meet() {
    let (one, other) = (env(), env());
    let train = tasks(&one, "4hop", Split::Train, 40, 7);
    assert_eq!(train, tasks(&other, "4hop", Split::Train, 40, 7));
    assert_ne!(train, tasks(&one, "4hop", Split::Train, 40, 8));
    let worlds = |tasks: &[Task]| -> BTreeSet<u64> {
        tasks.iter().map(|task| task.body["pages"]["graph"]["seed"].as_u64().unwrap()).collect()
    };
    let train_worlds = worlds(&train);
    assert_eq!(train_worlds.len(), 3, "16 questions a world");
    assert!(train_worlds.is_disjoint(&worlds(&tasks(&one, "4hop", Split::Val, 40, 7))));
    let questions: BTreeSet<&str> = train.iter().map(|task| task.body["question"].as_str().unwrap()).collect();
    assert!(questions.len() >= 39, "{}", questions.len());
}

#[test]
fn the_language_reads_what_it_writes_and_nothing_else() {
    let world = World::new(&GraphConfig::new(5)).unwrap();
    let graph = &world.graph;
    let (mut asked, mut many) = (0, 0);
    for (id, entity) in graph.entities() {
        for relation in RELATIONS {
            let Some(object) = graph.object(id, relation) else { continue };
            for other_words in [false, true] {
                let question = relation.question(&entity.name, other_words);
                assert_eq!(graph.answers(&question), Some(BTreeSet::from([object])), "{question}");
                asked += 1;
            }
        }
        many += usize::from(entity.kind == Kind::Person);
    }
    assert!(asked > 1_500 && many == 120, "{asked} {many}");
    let person = graph.entities().next().unwrap().1.name.clone();
    let shouted = format!("  WHERE was {}\n born? Give the town only.", person.to_uppercase());
    assert_eq!(graph.answers(&shouted), graph.answers(&format!("Where was {person} born?")));
    for other in ["", "?", "Where was Nobody At All born?", "How old is he?", "Where was born?"] {
        assert_eq!(graph.answers(other), None, "{other}");
    }
    let two = format!("Where was {person} born? Where did {person} die?");
    assert_eq!(graph.answers(&two), None, "two questions are not one");
}

#[test]
fn settings_that_do_not_fit_are_refused_with_the_next_step() {
    let refused = |config: DeepDiveConfig| DeepDive::new(config).err().unwrap().to_string();
    let search = rao_envs::deepdive::Search::Tavily { url: "http://127.0.0.1:9".into() };
    assert!(refused(DeepDiveConfig { search, ..Default::default() }).contains("pages of their own"));
    let env = env();
    let bad = |presets: &[&str], count| {
        let presets = presets.iter().map(|preset| (*preset).to_owned()).collect();
        env.tasks(&Selection { presets, split: Split::Val, count, seed: 1 }).unwrap_err().to_string()
    };
    assert!(bad(&["3hop"], Some(1)).contains("2hop, 4hop, 6hop, 9hop"));
    assert!(bad(&["2hop"], None).contains("say how many"));
}
