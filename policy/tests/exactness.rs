//! Sampled log-probabilities equal the training pass's bit for bit, and a completion depends on nothing but its request.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use common::{config, ids, packed};
use rao_policy::{
    Chat, Completion, Decoder, Limits, LocalPolicy, Packed, PackedSequence, Policy, Request, SampleKey, Sampler, Stop,
    side_by_side,
};

const VOCABULARY: usize = 300;

/// Weights far enough from zero that the distribution is uneven.
fn decoder() -> Decoder {
    let decoder = Decoder::init(config(VOCABULARY), 5).unwrap();
    for var in decoder.vars().values() {
        var.set(&(var.as_tensor() * 1.7).unwrap()).unwrap();
    }
    decoder
}

fn policy(limits: Limits) -> LocalPolicy {
    LocalPolicy::new("test", decoder(), Chat::bytes().unwrap(), limits).unwrap()
}

struct Job {
    row: u64,
    context: Vec<u32>,
    max_tokens: u32,
    temperature: f32,
}

impl Job {
    fn request(&self) -> Request<'_> {
        let sampler = Sampler::whole(self.temperature, self.max_tokens);
        Request { row: self.row, context: &self.context, sampler, window: 400, key: SampleKey([self.row as u8; 32]) }
    }
}

/// Contexts of mixed lengths; some share long beginnings, one is a single token.
fn jobs() -> Vec<Job> {
    let shared = ids(99, 40, VOCABULARY);
    [1usize, 2, 3, 17, 64, 33, 130, 5, 50, 70]
        .into_iter()
        .enumerate()
        .map(|(row, len)| {
            let mut context = if row >= 6 { shared.clone() } else { Vec::new() };
            context.extend(ids(row as u64, len, VOCABULARY));
            let temperature = [1.0, 1.0, 0.7, 0.0][row % 4];
            Job { row: row as u64, context, max_tokens: 3 + 5 * row as u32, temperature }
        })
        .collect()
}

fn run(policy: &mut LocalPolicy, jobs: &[&Job]) -> Vec<Completion> {
    let requests: Vec<Request<'_>> = jobs.iter().map(|job| job.request()).collect();
    policy.sample(&requests).unwrap()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Tokens equal, log-probabilities equal bit for bit.
fn assert_same(a: &[Completion], b: &[Completion], what: &str) {
    assert_eq!(a.len(), b.len());
    for (row, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!((&a.tokens, a.stop), (&b.tokens, b.stop), "{what}: row {row}");
        assert_eq!(bits(&a.logprobs), bits(&b.logprobs), "{what}: row {row}");
    }
}

fn teacher_forced(jobs: &[Job], completions: &[Completion]) -> (Packed, Vec<f32>) {
    let mut packed = Packed::default();
    for (job, completion) in jobs.iter().zip(completions) {
        let tokens = [job.context.clone(), completion.tokens.clone()].concat();
        let targets = (job.context.len()..tokens.len()).collect();
        packed.sequences.push(PackedSequence { tokens, targets });
    }
    let sampled = completions.iter().flat_map(|c| c.logprobs.clone()).collect();
    (packed, sampled)
}

#[test]
fn sampled_and_trained_logprobs_have_the_same_bits() {
    let jobs = jobs();
    let all: Vec<&Job> = jobs.iter().collect();
    let together = run(&mut policy(Limits::default()), &all);
    assert!(together.iter().map(|c| c.tokens.len()).sum::<usize>() > 100);
    let (packed, sampled) = teacher_forced(&jobs, &together);
    let decoder = decoder();
    let trained: Vec<f32> = decoder.token_logprobs(&packed).unwrap().to_vec1().unwrap();
    assert_eq!(bits(&trained), bits(&sampled));
    // One by one, too: the training batch does not matter either.
    let mut at = 0;
    for sequence in &packed.sequences {
        let one = Packed { sequences: vec![sequence.clone()] };
        let alone: Vec<f32> = decoder.token_logprobs(&one).unwrap().to_vec1().unwrap();
        assert_eq!(bits(&alone), bits(&sampled[at..at + alone.len()]));
        at += alone.len();
    }
    // A change in the weights shows: the comparison is not of constants.
    let name = "model.layers.0.self_attn.k_proj.weight";
    let var = &decoder.vars()[name];
    var.set(&(var.as_tensor() * 1.001).unwrap()).unwrap();
    let moved: Vec<f32> = decoder.token_logprobs(&packed).unwrap().to_vec1().unwrap();
    assert_ne!(bits(&moved), bits(&sampled));
}

#[test]
fn a_completion_does_not_depend_on_the_batch_the_cache_or_the_threads() {
    let jobs = jobs();
    let all: Vec<&Job> = jobs.iter().collect();
    let together = run(&mut policy(Limits::default()), &all);
    let alone: Vec<Completion> = jobs.iter().flat_map(|job| run(&mut policy(Limits::default()), &[job])).collect();
    assert_same(&alone, &together, "alone");

    let mut backwards: Vec<&Job> = all.iter().rev().copied().collect();
    let mut reversed = run(&mut policy(Limits::default()), &backwards);
    reversed.reverse();
    assert_same(&reversed, &together, "in reverse order");
    backwards.truncate(4);
    let mut fewer = run(&mut policy(Limits::default()), &backwards);
    fewer.reverse();
    assert_same(&fewer, &together[6..], "four of ten");

    let mut warm = policy(Limits::default());
    run(&mut warm, &all);
    assert_same(&run(&mut warm, &all), &together, "from warm caches");
    // The same rows with other contexts: what is cached for a row is checked, not trusted.
    let other: Vec<Job> =
        jobs.iter().map(|job| Job { row: (job.row + 1) % 10, context: job.context.clone(), ..*job }).collect();
    run(&mut warm, &other.iter().collect::<Vec<_>>());
    assert_same(&run(&mut warm, &all), &together, "after other contexts in the same rows");
    jobs.iter().for_each(|job| warm.release(job.row));
    assert_same(&run(&mut warm, &all), &together, "after release");

    for cache_bytes in [0, 100_000, 1_000_000] {
        let mut tight = policy(Limits { cache_bytes, prefill_tokens: 7 });
        run(&mut tight, &all);
        assert_same(&run(&mut tight, &all), &together, "with eviction and small passes");
    }
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let got = pool.install(|| run(&mut policy(Limits::default()), &all));
        assert_same(&got, &together, "on other threads");
    }
}

/// A conversation: each turn's context is the last one, its completion and something new, as the engine sends them.
#[test]
fn turns_continue_from_the_cache() {
    let mut warm = policy(Limits::default());
    let mut context = ids(4, 30, VOCABULARY);
    for turn in 0..4u64 {
        let job = Job { row: 1, context: context.clone(), max_tokens: 12, temperature: 1.0 };
        let other = Job { row: 2, context: ids(turn, 20, VOCABULARY), max_tokens: 30, temperature: 1.0 };
        let got = run(&mut warm, &[&other, &job]).pop().unwrap();
        let cold = run(&mut policy(Limits::default()), &[&job]);
        assert_same(std::slice::from_ref(&got), &cold, "turn");
        context.extend(&got.tokens);
        context.extend(ids(100 + turn, 9, VOCABULARY));
    }
}

#[test]
fn gradients_do_not_depend_on_threads() {
    let decoder = decoder();
    let batch = packed(&[ids(1, 200, VOCABULARY), ids(2, 90, VOCABULARY), ids(3, 300, VOCABULARY)]);
    let gradients = |batch: &Packed| {
        let loss = decoder.token_logprobs(batch).unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        let all = decoder.vars().values().map(|var| {
            let grad = grads.get(var.as_tensor()).unwrap();
            bits(&grad.flatten_all().unwrap().to_vec1::<f32>().unwrap())
        });
        all.collect::<Vec<_>>()
    };
    let pools = [1, 2].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    let [one, two] = pools.each_ref().map(|pool| pool.install(|| gradients(&batch)));
    assert!(one == two);
    let parts: Vec<Packed> = batch.sequences.iter().map(|s| Packed { sequences: vec![s.clone()] }).collect();
    let [one, two] = pools.each_ref().map(|pool| pool.install(|| side_by_side(3, |at| gradients(&parts[at]))));
    assert!(one == two);
    assert_eq!(one[2], gradients(&parts[2]), "results are in order");
}

#[test]
fn completions_stop_where_they_should() {
    let mut policy = policy(Limits::default());
    let context = ids(8, 20, VOCABULARY);
    let request = |max_tokens, window| Request {
        row: 0,
        context: &context,
        sampler: Sampler::whole(1.0, max_tokens),
        window,
        key: SampleKey([9; 32]),
    };
    let got = policy.sample(&[request(5, 400)]).unwrap().remove(0);
    assert_eq!((got.tokens.len(), got.stop), (5, Stop::MaxTokens));
    let got = policy.sample(&[request(50, 23)]).unwrap().remove(0);
    assert_eq!((got.tokens.len(), got.stop), (3, Stop::Window));
    let got = policy.sample(&[request(50, 20)]).unwrap().remove(0);
    assert_eq!((got.tokens.len(), got.stop), (0, Stop::Window));
    assert!(policy.sample(&[]).unwrap().is_empty());
    let bad = Request { context: &[VOCABULARY as u32], ..request(1, 10) };
    assert!(policy.sample(&[bad]).unwrap_err().to_string().contains("outside the vocabulary"));
    assert!(policy.sample(&[Request { context: &[], ..request(1, 10) }]).is_err());
}

/// Sets the embedding so that after byte b the model says the next byte of a fixed text for sure.
#[test]
fn the_end_of_a_cell_is_seen_across_tokens() {
    let chat = Chat::bytes().unwrap();
    let speak = |text: &[u32]| {
        let config = rao_policy::Config { hidden_size: 320, tie_word_embeddings: false, ..config(VOCABULARY) };
        let decoder = Decoder::init(config, 1).unwrap();
        let zero = |name: &str| {
            let var = &decoder.vars()[name];
            var.set(&var.as_tensor().zeros_like().unwrap()).unwrap();
        };
        for layer in 0..2 {
            zero(&format!("model.layers.{layer}.self_attn.o_proj.weight"));
            zero(&format!("model.layers.{layer}.mlp.down_proj.weight"));
        }
        let (mut embedding, mut head) = (vec![0f32; VOCABULARY * 320], vec![0f32; VOCABULARY * 320]);
        (0..VOCABULARY).for_each(|id| embedding[id * 320 + id] = 1.0);
        for pair in text.windows(2) {
            head[pair[1] as usize * 320 + pair[0] as usize] = 5.0;
        }
        for (name, numbers) in [("model.embed_tokens.weight", embedding), ("lm_head.weight", head)] {
            let t = candle_core::Tensor::from_vec(numbers, (VOCABULARY, 320), &candle_core::Device::Cpu).unwrap();
            decoder.vars()[name].set(&t).unwrap();
        }
        let mut policy = LocalPolicy::new("speaker", decoder, chat.clone(), Limits::default()).unwrap();
        let context = [text[0]];
        let sampler = Sampler::whole(0.0, 40);
        let request = Request { row: 0, context: &context, sampler, window: 100, key: SampleKey([0; 32]) };
        policy.sample(&[request]).unwrap().remove(0)
    };
    let text = chat.encode_action("a</python>bcdefg").unwrap();
    let got = speak(&text);
    assert_eq!((chat.decode(&got.tokens).as_str(), got.stop), ("</python>", Stop::CellEnd));
    let mut text = chat.encode_action("qrs").unwrap();
    text.push(chat.end_of_turn());
    let got = speak(&text);
    assert_eq!((got.tokens.last(), got.stop), (Some(&chat.end_of_turn()), Stop::EndOfTurn));
    assert_eq!(got.logprobs.len(), 3);
}
