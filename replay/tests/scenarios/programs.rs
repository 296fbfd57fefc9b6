//! Random programs of spawns, gathers, failures and crafts: recorded, replayed at every check from every event, cut off
//! and resumed.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use rao_engine::repl::CellLimits;
use rao_engine::{Actor, Ask, EngineConfig, Scheduler};

use crate::stage::{
    Late, Played, config, cut_and_finish, cut_and_resume, means, open, plan, record_in, replay_everything,
};

/// Cells; `GOAL` is the node's own targets and `ITEM` the first item among them.
const CELLS: [&str; 16] = [
    "finish('done')",
    "finish({'n': [1, 2.5, None]})\nprint('after')",
    "print(get_info(['ITEM']))",
    "print(await launch_subagent(GOAL))",
    "print(await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL)))",
    "print(await asyncio.gather(launch_subagent(GOAL), launch_subagent({'nothing': 1}), return_exceptions=True))",
    "a = launch_subagent(GOAL)\nb = launch_subagent(GOAL)\nprint(await b)\nprint(await a)",
    "launch_subagent(GOAL)\nprint('left alone')",
    "async def boom():\n    raise ValueError('now')\nawait asyncio.gather(launch_subagent(GOAL), boom())",
    "raise KeyError('missing')",
    "print('unclosed'",
    "for i in range(7):\n    view_inventory()",
    "print(craft({'raw_t3': 1}, ('ITEM', 1)))",
    "import random\nx = random.random()\nprint(x)",
    "print(await asyncio.gather(launch_subagent(GOAL), asyncio.gather(launch_subagent(GOAL))))\nfinish(3)",
    "print(x)",
];

/// Which of the chosen cells a node runs at a step.
fn chosen(ask: &Ask<'_>, choices: &[usize]) -> String {
    let mut place = ask.step as usize;
    for ordinal in ask.node.ordinals() {
        place = place * 5 + *ordinal as usize + 1;
    }
    let goal = ask.goal.targets.to_string();
    let item = goal.split('"').nth(1).unwrap_or_default().to_owned();
    CELLS[choices[place % choices.len()]].replace("GOAL", &goal).replace("ITEM", &item)
}

proptest! {
    #![proptest_config(Config { cases: 6, failure_persistence: None, rng_seed: RngSeed::Fixed(20_260_131), ..Config::default() })]

    #[test]
    fn any_program_is_replayed_and_resumed(choices in prop::collection::vec(0..CELLS.len(), 9)) {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let actor = Played::new(move |ask| chosen(ask, &choices));
        let cell = CellLimits { calls: 5, ..CellLimits::default() };
        let plan = plan(1, 1, EngineConfig { max_depth: 2, max_steps: 3, max_nodes: 5, cell, ..config() });
        record_in(&log, &plan, &mut *actor.again());
        replay_everything(&*log, &mut means(actor.again()));
        cut_and_resume(&*log, &plan, &actor, 4);
    }

    /// The same with answers that come in any order: the order is a fact, which every check takes from the log.
    #[test]
    fn any_program_is_replayed_as_its_answers_arrived(choices in prop::collection::vec(0..CELLS.len(), 9), seed: u64) {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let actor = Played::new(move |ask| chosen(ask, &choices));
        let cell = CellLimits { calls: 5, ..CellLimits::default() };
        let scheduler = Scheduler::Arrival;
        let config = EngineConfig { max_depth: 2, max_steps: 3, max_nodes: 5, cell, scheduler, ..config() };
        let plan = plan(1, 1, config);
        record_in(&log, &plan, &mut Late::scrambled(actor.again(), 3, seed));
        let mut means = means(actor.again());
        replay_everything(&*log, &mut means);
        let again = || -> Box<dyn Actor> { Box::new(Late::scrambled(actor.again(), 3, seed ^ 1)) };
        cut_and_finish(&*log, &plan, &mut means, &again, 11);
    }
}
