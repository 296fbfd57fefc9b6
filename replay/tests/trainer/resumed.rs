//! Checkpoints: a restart changes no byte, and a folder that is not whole is refused.

use std::path::Path;

use rao_replay::trainer::{Class, LoraSettings, MODEL_FILE, OPTIMIZER_FILE, Resources, STATE_FILE, Settings, Trainer};
use rao_store::event::LossKind;
use serde_json::{Value, json};

use crate::common::{ordinary, settings, train, trainer};

fn files(dir: &Path) -> Vec<Vec<u8>> {
    [MODEL_FILE, OPTIMIZER_FILE, STATE_FILE].map(|name| std::fs::read(dir.join(name)).unwrap()).to_vec()
}

/// Five steps at once, and three, a restart and two, on pools of different sizes: the same bytes everywhere.
fn resumes(loss: LossKind) {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(&dir.path().join("log"));
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let steps = |trainer: &mut Trainer, count: u64| {
        // Supervised steps belong to one call, reinforcement takes one a call.
        if loss == LossKind::Sft {
            trainer.set_steps(count);
            train(trainer, &log, &[run]).unwrap();
        } else {
            for _ in 0..count {
                train(trainer, &log, &[run]).unwrap();
            }
        }
    };
    let settings = settings(loss);
    let mut saved = Vec::new();
    for threads in [1, 2] {
        let place = dir.path().join(format!("whole-{threads}"));
        pool(threads).install(|| {
            let mut whole = trainer(1, &settings);
            steps(&mut whole, 5);
            whole.set_steps(1);
            whole.save(&place).unwrap();
        });
        saved.push(files(&place));
    }
    let (half, end) = (dir.path().join("half"), dir.path().join("end"));
    pool(2).install(|| {
        let mut first = trainer(1, &settings);
        steps(&mut first, 3);
        first.save(&half).unwrap();
    });
    pool(1).install(|| {
        let mut second = Trainer::resume(&half, settings.clone(), Resources::default()).unwrap();
        assert_eq!((second.optimizer_step(), second.decoder().version()), (3, 3));
        steps(&mut second, 2);
        second.set_steps(1);
        second.save(&end).unwrap();
    });
    saved.push(files(&end));
    assert!(saved[0] == saved[1], "1 and 2 threads give different bytes");
    assert!(saved[0] == saved[2], "a restart gives different bytes");
    let untouched = dir.path().join("untouched");
    trainer(1, &settings).save(&untouched).unwrap();
    assert_ne!(files(&untouched)[0], saved[0][0]);
}

#[test]
fn reinforcement_resumes_bit_for_bit_whatever_the_threads() {
    resumes(LossKind::Cispo);
}

#[test]
fn supervised_training_resumes_bit_for_bit_whatever_the_threads() {
    resumes(LossKind::Sft);
}

#[test]
fn a_checkpoint_is_whole_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(&dir.path().join("log"));
    let settings = settings(LossKind::Cispo);
    let place = dir.path().join("checkpoint");
    let mut first = trainer(1, &settings);
    train(&mut first, &log, &[run]).unwrap();
    first.save(&place).unwrap();
    first.save(&place).unwrap();
    let resume = |settings: &Settings| Trainer::resume(&place, settings.clone(), Resources::default());
    assert_eq!(resume(&settings).unwrap().weights(), first.weights());
    // A crash between the two renames of a save leaves the old folder beside its place.
    std::fs::rename(&place, dir.path().join("checkpoint.previous")).unwrap();
    assert_eq!(resume(&settings).unwrap().weights(), first.weights());
    let error = resume(&Settings { seed: 9, ..settings.clone() }).err().unwrap();
    assert!(error.class() == Class::Usage && error.to_string().contains("other settings"), "{error}");
    assert!(resume(&Settings { steps: 77, ..settings.clone() }).is_ok());
    let moments = place.join(OPTIMIZER_FILE);
    let mut bytes = std::fs::read(&moments).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&moments, bytes).unwrap();
    let error = resume(&settings).err().unwrap();
    assert!(error.class() == Class::Integrity && error.to_string().contains(OPTIMIZER_FILE), "{error}");
    let fresh = Trainer::fresh(&place, settings.clone(), Resources::default()).unwrap();
    assert_eq!((fresh.optimizer_step(), fresh.decoder().version()), (0, 1));
    std::fs::remove_file(place.join(STATE_FILE)).unwrap();
    assert!(resume(&settings).err().unwrap().to_string().contains("start a fresh one"));
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!files.iter().any(|name| name.to_string_lossy().contains("partial")), "{files:?}");
}

/// Three steps, a restart, two more: the bytes of five. Only the adapter is trained and saved; the base stays as it was.
#[test]
fn an_adapter_trains_and_resumes_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(&dir.path().join("log"));
    let base = dir.path().join("base");
    trainer(1, &settings(LossKind::Cispo)).save(&base).unwrap();
    let lora = LoraSettings { rank: 2, alpha: 4.0, targets: vec!["q_proj".into(), "up_proj".into()] };
    let settings = Settings { lora: Some(lora), ..settings(LossKind::Cispo) };
    let fresh = || Trainer::fresh(&base, settings.clone(), Resources::default()).unwrap();
    let names = ["adapter_model.safetensors", "adapter_config.json", OPTIMIZER_FILE, STATE_FILE];
    let files = |name: &str| names.map(|file| std::fs::read(dir.path().join(name).join(file)).unwrap());
    let steps = |trainer: &mut Trainer, count| (0..count).for_each(|_| drop(train(trainer, &log, &[run]).unwrap()));
    let mut whole = fresh();
    let first = train(&mut whole, &log, &[run]).unwrap();
    let equal = first.last.unwrap();
    assert_eq!(equal.equal, equal.tokens, "a fresh adapter changes no log-probability");
    steps(&mut whole, 4);
    whole.save(&dir.path().join("whole")).unwrap();
    let mut half = fresh();
    steps(&mut half, 3);
    half.save(&dir.path().join("half")).unwrap();
    let mut rest = Trainer::resume(&dir.path().join("half"), settings.clone(), Resources::default()).unwrap();
    assert_eq!((rest.optimizer_step(), rest.weights()), (3, half.weights()));
    steps(&mut rest, 2);
    rest.save(&dir.path().join("rest")).unwrap();
    assert!(files("whole") == files("rest"), "a restart gives other bytes");
    assert!(!dir.path().join("whole").join(MODEL_FILE).exists(), "the base is named, not copied");
    assert_ne!(whole.weights(), fresh().weights());
    // Without settings the adapter of the folder goes on being trained; other settings are refused.
    let plain = Settings { lora: None, ..settings.clone() };
    let on = Trainer::fresh(&dir.path().join("whole"), plain, Resources::default()).unwrap();
    assert_eq!((on.weights(), on.settings().lora.clone()), (whole.weights(), settings.lora.clone()));
    let other = LoraSettings { rank: 3, ..settings.lora.clone().unwrap() };
    let error =
        Trainer::fresh(&dir.path().join("whole"), Settings { lora: Some(other), ..settings }, Resources::default());
    assert!(error.err().unwrap().to_string().contains("other settings"));
}

/// A checkpoint of one supervised step: its folder, its settings.
fn saved(dir: &Path) -> (std::path::PathBuf, Settings) {
    let (log, run) = ordinary(&dir.join("log"));
    let (place, settings) = (dir.join("checkpoint"), settings(LossKind::Sft));
    let mut trainer = trainer(1, &settings);
    train(&mut trainer, &log, &[run]).unwrap();
    trainer.save(&place).unwrap();
    (place, settings)
}

#[test]
fn one_flipped_byte_in_any_file_of_a_checkpoint_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (place, settings) = saved(dir.path());
    let resume = || Trainer::resume(&place, settings.clone(), Resources::default());
    let names: Vec<String> = std::fs::read_dir(&place)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != STATE_FILE)
        .collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let whole = std::fs::read(place.join(&name)).unwrap();
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        std::fs::write(place.join(&name), flipped).unwrap();
        let error = resume().err().unwrap_or_else(|| panic!("{name} was not looked at"));
        assert!(error.class() == Class::Integrity && error.to_string().contains(&name), "{name}: {error}");
        std::fs::write(place.join(&name), whole).unwrap();
    }
    assert!(resume().is_ok());
}

#[test]
fn a_state_that_its_files_contradict_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (place, settings) = saved(dir.path());
    let path = place.join(STATE_FILE);
    let state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&state["version"], &state["step"], &state["taken"]), (&json!(1), &json!(1), &json!(3)));
    let other = "0".repeat(64);
    for (field, value, class, said) in [
        ("format", json!(2), Class::Integrity, "format 2"),
        ("version", json!(2), Class::Integrity, "version"),
        ("step", json!(2), Class::Integrity, "step"),
        ("weights", json!(other), Class::Integrity, "weights"),
        ("settings_digest", json!(other), Class::Usage, "other settings"),
    ] {
        let mut forged = state.clone();
        forged[field] = value;
        std::fs::write(&path, forged.to_string()).unwrap();
        let error = Trainer::resume(&place, settings.clone(), Resources::default()).err();
        let error = error.unwrap_or_else(|| panic!("{field} was not looked at"));
        assert!(error.class() == class && error.to_string().contains(said), "{field}: {error}");
    }
}

#[test]
fn a_save_that_fails_leaves_the_folder_that_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let (place, settings) = saved(dir.path());
    let before = files(&place);
    let trainer = Trainer::resume(&place, settings.clone(), Resources::default()).unwrap();
    // A file cannot lie in another file.
    let impossible = [(format!("{MODEL_FILE}/x"), Vec::new())];
    assert!(trainer.save_with(&place, &impossible).is_err());
    assert!(files(&place) == before);
    assert!(Trainer::resume(&place, settings, Resources::default()).is_ok());
    trainer.save_with(&place, &[("plots/loss.svg".to_owned(), b"x".to_vec())]).unwrap();
    assert!(files(&place) == before && place.join("plots/loss.svg").exists());
}

/// The schedule and the weights' version go on over calls, and over a restart.
#[test]
fn a_second_call_goes_on_where_the_first_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(&dir.path().join("log"));
    let (place, settings) = (dir.path().join("checkpoint"), settings(LossKind::Cispo));
    let mut first = trainer(1, &settings);
    let rate = |trainer: &mut Trainer| {
        let last = train(trainer, &log, &[run]).unwrap().last.unwrap();
        (last.version, last.learning_rate)
    };
    assert_eq!([rate(&mut first), rate(&mut first)], [(1, 1e-2 / 3.0), (2, 1e-2 * 2.0 / 3.0)]);
    first.save(&place).unwrap();
    let mut second = Trainer::resume(&place, settings, Resources::default()).unwrap();
    assert_eq!([rate(&mut second), rate(&mut second)], [(3, 1e-2), (4, 1e-2)]);
}
