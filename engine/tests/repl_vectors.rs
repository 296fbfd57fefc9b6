//! The reference cells (`NN-*.py` with `NN-*.expected`, made by CPython) on the embedded engine.
//!
//! Under every answer order a file is byte-equal, or its first differing cell ends with an error that says what is
//! unsupported: nothing differs in silence. `RAO_LOG_VECTORS` names the folder that holds `repl/`.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod world;

use std::path::Path;

use rao_engine::repl::Monty;
use world::{Host, ORDERS, Order, cells, expected_cells, files};

/// Files that are byte-equal. The list only grows.
const EQUAL: &[&str] = &[
    "01-recipe-walk",
    "03-tool-failure",
    "05-gather-comprehension",
    "07-gather-failures",
    "11-sorting-lambda",
    "13-collections",
    "17-closures-nested",
    "19-itertools-math",
    "27-random-seeded-simulation",
];

/// Files that the embedded engine refuses, and what its error names.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("09-regex-chunking", "re.sub"),
    ("15-classes", "method decorators"),
    ("21-strings", "maketrans"),
    ("23-tasks-and-semaphore", "async context managers"),
    ("25-retry-and-raise", "inheritance"),
];

/// `Ok` if every cell is equal, otherwise the loud error of the first cell that is not.
fn run(path: &Path, order: Order) -> Result<(), String> {
    let source = std::fs::read_to_string(path).unwrap();
    let expected = expected_cells(&std::fs::read_to_string(path.with_extension("expected")).unwrap());
    let cells = cells(&source);
    assert_eq!(cells.len(), expected.len(), "{}", path.display());
    let engine = Monty::new();
    let mut host = Host::new(&engine, order);
    for (code, expected) in cells.iter().zip(&expected) {
        let got = host.cell(code);
        if got != *expected {
            let (stdout, error) = got.split_once("[error] ").unwrap_or_else(|| {
                panic!("{} differs in silence under {order:?}:\n{got}instead of\n{expected}", path.display())
            });
            assert!(expected.starts_with(stdout), "{} under {order:?}: {got}instead of\n{expected}", path.display());
            return Err(error.trim_end().to_owned());
        }
    }
    assert_eq!(host.restores > cells.len(), order == Order::Restored);
    Ok(())
}

#[test]
fn reference_cells_are_equal_or_refused_by_name() {
    let Some(files) = files() else { return };
    for path in files {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let unsupported = UNSUPPORTED.iter().find(|(file, _)| *file == name);
        for order in ORDERS {
            match (run(&path, order), unsupported) {
                (Ok(()), None) => {}
                (Ok(()), Some(_)) => panic!("{name} is equal now: move it to EQUAL"),
                (Err(error), Some((_, names))) => {
                    assert!(error.contains(names), "{name} under {order:?} should name {names}: {error}");
                }
                (Err(error), None) => {
                    assert!(!EQUAL.contains(&name), "{name} under {order:?} is on the list and failed: {error}");
                    println!("{name} is not supported under {order:?}: {error}");
                }
            }
        }
    }
}
