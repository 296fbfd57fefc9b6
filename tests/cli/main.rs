//! Whole-program tests: the built program, real logs, real models; nothing stands in for a part of it.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first thing that is not there")]

mod arrival;
mod common;
mod compare;
mod cpython;
mod damage;
mod decoding;
mod deepdive;
mod deepdive_data;
mod deepdive_search;
mod doctor;
mod durability;
mod environments;
mod errors;
#[expect(dead_code, reason = "its own tests use the rest")]
#[path = "../../policy/tests/served/fake.rs"]
mod fake;
mod following;
mod forks;
mod guide;
mod help;
mod interrupted;
mod llm_judge;
mod mail;
mod minecraft;
mod mini;
mod official;
mod oolong;
mod prune;
mod record_and_read;
mod regression;
mod resumed;
mod schema;
mod sealed;
mod served;
mod trainer;
mod training;

use rao_testkit_server as server;
