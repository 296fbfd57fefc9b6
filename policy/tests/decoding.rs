//! Whatever runs beside it, whatever was cached and however many threads run: a completion is a function of its request.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use common::{config, ids, packed};
use proptest::prelude::*;
use rao_policy::{Chat, Completion, Decoder, Limits, LocalPolicy, Policy, Request, SampleKey, Sampler, Stop, Stops};
use std::sync::OnceLock;

const VOCABULARY: usize = 300;
const JOBS: usize = 12;

fn decoder() -> &'static Decoder {
    static DECODER: OnceLock<Decoder> = OnceLock::new();
    DECODER.get_or_init(|| {
        let decoder = Decoder::init(config(VOCABULARY), 5).unwrap();
        for var in decoder.vars().values() {
            var.set(&(var.as_tensor() * 1.7).unwrap()).unwrap();
        }
        decoder
    })
}

fn policy(limits: Limits) -> LocalPolicy {
    LocalPolicy::new("test", decoder().snapshot().unwrap(), Chat::bytes().unwrap(), limits).unwrap()
}

/// Tokens of a cache's block, and bytes of one of this model.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 2 * 2 * BLOCK * (20 + 32) * size_of::<f32>();

/// Contexts of a tree: all begin alike, siblings share more; more and less than whole blocks.
fn context(job: usize) -> Vec<u32> {
    let mut context = ids(1000, 70, VOCABULARY);
    context.extend(ids(2000 + job as u64 / 3, 10 + 17 * (job / 3), VOCABULARY));
    context.extend(ids(job as u64, 1 + 5 * (job % 3), VOCABULARY));
    context
}

fn sampler(job: usize) -> Sampler {
    let whole = Sampler::whole([1.0, 0.0, 0.8, 1.3][job % 4], 3 + 4 * (job as u32 % 5));
    match job % 5 {
        1 => Sampler { top_k: 7, ..whole },
        2 => Sampler { top_p: 0.8, ..whole },
        3 => Sampler { top_k: 40, top_p: 0.6, ..whole },
        _ => whole,
    }
}

fn run(policy: &mut LocalPolicy, jobs: &[usize], row: impl Fn(usize) -> u64) -> Vec<Completion> {
    let contexts: Vec<Vec<u32>> = jobs.iter().map(|job| context(*job)).collect();
    let requests: Vec<Request<'_>> = jobs
        .iter()
        .zip(&contexts)
        .map(|(job, context)| Request {
            row: row(*job),
            context,
            sampler: sampler(*job),
            window: 400,
            key: SampleKey([*job as u8; 32]),
        })
        .collect();
    policy.sample(&requests).unwrap()
}

/// What each job gives alone.
fn alone() -> &'static Vec<Completion> {
    static ALONE: OnceLock<Vec<Completion>> = OnceLock::new();
    ALONE.get_or_init(|| (0..JOBS).map(|job| run(&mut policy(Limits::default()), &[job], |_| 0).remove(0)).collect())
}

fn same(a: &Completion, b: &Completion) -> bool {
    let bits = |c: &Completion| c.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    (&a.tokens, a.stop, bits(a)) == (&b.tokens, b.stop, bits(b))
}

/// What happens to one policy, call by call.
#[derive(Clone, Debug)]
enum Act {
    Sample(Vec<usize>),
    Release(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let jobs = prop::sample::subsequence((0..JOBS).collect::<Vec<_>>(), 1..=JOBS).prop_shuffle();
    let act = prop_oneof![3 => jobs.prop_map(Act::Sample), 1 => (0..JOBS).prop_map(Act::Release)];
    prop::collection::vec(act, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn completions_depend_on_their_requests_alone(
        acts in acts(),
        cache_bytes in prop_oneof![Just(0usize), (1usize..30).prop_map(|blocks| blocks * BLOCK_BYTES), Just(1 << 30)],
        prefill_tokens in prop_oneof![Just(1usize), Just(13), Just(2048)],
        threads in 1usize..4,
        shift in 0u64..3,
    ) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut policy = policy(Limits { cache_bytes, prefill_tokens });
        for (call, act) in acts.iter().enumerate() {
            // Rows change hands between calls: a cache is never taken at its word.
            let row = |job: usize| (job as u64 + shift * call as u64) % JOBS as u64;
            match act {
                Act::Release(job) => policy.release(row(*job)),
                Act::Sample(jobs) => {
                    let got = pool.install(|| run(&mut policy, jobs, row));
                    for (job, got) in jobs.iter().zip(&got) {
                        prop_assert!(same(got, &alone()[*job]), "call {call}, job {job}: {got:?} for {:?}", alone()[*job]);
                    }
                }
            }
            // Never more than is allowed, but for what one row needs.
            let longest = (0..JOBS).map(|job| context(job).len() + sampler(job).max_tokens as usize).max();
            let one_row = longest.unwrap_or(0).div_ceil(BLOCK) * BLOCK_BYTES;
            prop_assert!(policy.cache_use().most <= cache_bytes.max(one_row), "{:?}", policy.cache_use());
            prop_assert!(policy.cache_use().held <= cache_bytes, "{:?}", policy.cache_use());
        }
    }
}

#[test]
fn the_jobs_are_worth_comparing() {
    let tokens: usize = alone().iter().map(|completion| completion.tokens.len()).sum();
    assert!(tokens > 60, "{tokens}");
    let distinct: std::collections::BTreeSet<_> = alone().iter().map(|completion| completion.tokens.clone()).collect();
    assert!(distinct.len() > JOBS / 2);
    // Truncated samplers report the probability among what was left: never less than the model's own.
    let whole = Sampler::whole(1.0, 4);
    let contexts = context(1);
    let score = |sampler: Sampler| {
        let request = Request { row: 0, context: &contexts, sampler, window: 400, key: SampleKey([9; 32]) };
        policy(Limits::default()).sample(&[request]).unwrap().remove(0)
    };
    let (cut, own) = (score(Sampler { top_k: 1, ..whole }), score(Sampler { temperature: 0.0, ..whole }));
    assert_eq!(cut.tokens, own.tokens);
    assert!(cut.logprobs.iter().all(|logprob| *logprob == 0.0) && own.logprobs.iter().all(|logprob| *logprob < 0.0));
}

/// Of samplers that leave nothing out, the log-probabilities are the trainer's.
#[test]
fn log_probabilities_are_the_trainers() {
    for job in (0..JOBS).filter(|job| !sampler(*job).leaves_out()) {
        let (context, got) = (context(job), &alone()[job]);
        let batch = packed(&[[context.clone(), got.tokens.clone()].concat()]);
        let scored: Vec<f32> = decoder().token_logprobs(&batch).unwrap().to_vec1().unwrap();
        assert_eq!(scored[context.len() - 1..], got.logprobs, "job {job}");
    }
}

/// Requests of rows that share `shared` tokens, then have five of their own.
fn many(policy: &mut LocalPolicy, rows: usize, shared: usize, max_tokens: u32) -> Vec<Completion> {
    let beginning = ids(7, shared, VOCABULARY);
    let contexts: Vec<Vec<u32>> =
        (0..rows).map(|row| [beginning.clone(), ids(100 + row as u64, 5, VOCABULARY)].concat()).collect();
    let requests: Vec<Request<'_>> = contexts
        .iter()
        .enumerate()
        .map(|(row, context)| Request {
            row: row as u64,
            context,
            sampler: Sampler::whole(1.0, max_tokens),
            window: 1000,
            key: SampleKey([row as u8; 32]),
        })
        .collect();
    policy.sample(&requests).unwrap()
}

/// Rows with a long common beginning take the memory of one beginning and of their own tokens, and fit a bound of that size
/// together; with less they take turns, to the same bits.
#[test]
fn rows_share_the_memory_of_their_beginning() {
    const SHARED: usize = 10 * BLOCK + 3;
    let shared = SHARED.div_ceil(BLOCK);
    let mut roomy = policy(Limits::default());
    let whole = many(&mut roomy, 32, SHARED, 20);
    // Each has a copy of the last shared block, in which its own tokens fit.
    assert_eq!(roomy.cache_use().held, (shared - 1 + 32) * BLOCK_BYTES);
    assert!(roomy.cache_use().most <= (shared + 32) * BLOCK_BYTES);
    // The next call, in which each goes on from what it has, copies nothing.
    let again = many(&mut roomy, 32, SHARED, 20);
    assert_eq!(roomy.cache_use().held, (shared - 1 + 32) * BLOCK_BYTES);
    assert!(whole.iter().zip(&again).all(|(a, b)| same(a, b)));
    for blocks in [shared, shared + 7, shared + 31, 2 * shared + 32] {
        let cache_bytes = blocks * BLOCK_BYTES;
        let mut tight = policy(Limits { cache_bytes, ..Limits::default() });
        let got = many(&mut tight, 32, SHARED, 20);
        assert!(whole.iter().zip(&got).all(|(a, b)| same(a, b)), "{blocks} blocks");
        assert!(tight.cache_use().most <= cache_bytes, "{blocks} blocks: {:?}", tight.cache_use());
    }
    // Where they fit together, they run together: all are still there at the end.
    let cache_bytes = (shared + 64) * BLOCK_BYTES;
    let mut together = policy(Limits { cache_bytes, ..Limits::default() });
    many(&mut together, 32, SHARED, 20);
    assert_eq!(together.cache_use().held, (shared - 1 + 32) * BLOCK_BYTES);
}

#[test]
fn stop_texts_and_ids_end_completions() {
    let whole = run(&mut policy(Limits::default()), &[4], |_| 0).remove(0);
    let id = whole.tokens[5];
    let first = whole.tokens.iter().position(|token| *token == id).unwrap();
    let mut stopped = policy(Limits::default()).with_stops(Stops::new(&[], &[id]).unwrap());
    let got = run(&mut stopped, &[4], |_| 0).remove(0);
    assert_eq!((got.stop, &got.tokens[..]), (Stop::Asked, &whole.tokens[..=first]));
    assert_eq!(got.logprobs, whole.logprobs[..=first]);
}

#[test]
fn wrong_samplers_are_refused() {
    let context = context(0);
    for (top_p, temperature) in [(0.0, 1.0), (1.5, 1.0), (f32::NAN, 1.0), (1.0, -1.0), (1.0, f32::NAN)] {
        let sampler = Sampler { top_p, ..Sampler::whole(temperature, 3) };
        let request = Request { row: 0, context: &context, sampler, window: 400, key: SampleKey([0; 32]) };
        assert!(policy(Limits::default()).sample(&[request]).is_err(), "{sampler:?}");
    }
}
