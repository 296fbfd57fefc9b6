//! Real tokenizers, templates and weights, which `scripts/fetch-models.sh` fetches into the folder that `RAO_LOG_MODELS` names.
//! Without the variable the tests say that they are skipped; with it, a missing file is a failure.

use rao_policy::{Chat, ChatFiles, Limits, LocalPolicy, Policy, Request, SampleKey, Sampler, Stop};
use std::path::PathBuf;

fn models() -> Option<PathBuf> {
    let folder = std::env::var_os("RAO_LOG_MODELS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: RAO_LOG_MODELS is not set");
    }
    folder
}

/// A text with what tokenizers stumble over.
const TEXT: &str = "In 2026, 17 + 25 = 42.\n\n  Don't  \u{e9}\u{4f60}\u{597d} \u{1F980}!\t<|im_end|>\n<think>x</think>";

#[test]
fn qwen3_rewrites_history_and_is_only_ever_extended() {
    let Some(models) = models() else { return };
    let chat = Chat::load(&models.join("qwen3-tokenizer")).unwrap();
    let how = chat.rewrites_history().expect("Qwen3's template drops what was thought");
    assert!(how.contains("<think>"), "{how}");
    let open = chat.open("Be brief.", TEXT).unwrap();
    let want =
        format!("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(chat.decode(&open), want);
    let count = |ids: &[u32], id: u32| ids.iter().filter(|one| **one == id).count();
    // <|im_start|>, <|im_end|>, <think>: what the user wrote has none of them as a control token.
    assert_eq!([151_644, 151_645, 151_667].map(|id| count(&open, id)), [3, 2, 0]);
    // The ids that the reference tokenizer gives for the beginning.
    assert_eq!(open[..7], [151_644, 8948, 198, 3430, 9814, 13, 151_645]);
    // A turn that was thought over: what was sampled stays in the context, and the next turn follows it.
    let mut context = chat.open("Be brief.", "17 + 25?").unwrap();
    let before = context.clone();
    let said = chat.encode_action("<think>\n17 + 25 = 42\n</think>\n\n42").unwrap();
    context.extend(&said);
    context.extend(chat.observe(false, "And 1 more?").unwrap());
    assert!(context.starts_with(&[before, said].concat()));
    assert_eq!(
        chat.decode(&context),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n17 + 25?<|im_end|>\n<|im_start|>assistant\n\
         <think>\n17 + 25 = 42\n</think>\n\n42<|im_end|>\n<|im_start|>user\nAnd 1 more?<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        chat.decode(&chat.observe(true, "x").unwrap()),
        "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    );
    assert!(chat.ends_completion(chat.end_of_turn()) && !chat.ends_completion(151_644));
    // A copy of its files is the same format.
    assert_eq!(Chat::from_files(chat.files()).unwrap().open("a", "b").unwrap(), chat.open("a", "b").unwrap());
    let bare = Chat::from_files(&ChatFiles { tokenizer: chat.to_json().to_vec(), ..ChatFiles::default() }).unwrap();
    assert_eq!(bare.open("Be brief.", TEXT).unwrap(), open, "Qwen3's turns are ChatML's");
    assert_eq!(bare.rewrites_history(), None);
}

/// A hybrid Qwen3 thinks unless the template is told otherwise; then it begins every turn with an empty thought.
#[test]
fn qwen3_is_told_not_to_think() {
    let Some(models) = models() else { return };
    let chat = Chat::load(&models.join("qwen3-tokenizer")).unwrap();
    let set = |text: &str| chat.with_template(&text.parse().unwrap());
    let (quiet, thinking) = (set("enable_thinking=false").unwrap(), set("enable_thinking=true").unwrap());
    let open = chat.open("Be brief.", TEXT).unwrap();
    assert_eq!(thinking.open("Be brief.", TEXT).unwrap(), open, "thinking is what it does unasked");
    // <think>, two line ends, </think>, two line ends.
    let thought = [151_667, 271, 151_668, 271];
    let quiet_open = quiet.open("Be brief.", TEXT).unwrap();
    assert_eq!(quiet_open, [open.as_slice(), &thought].concat());
    assert_eq!(quiet.observe(true, "x").unwrap(), [chat.observe(true, "x").unwrap().as_slice(), &thought].concat());
    assert_eq!((quiet.digest(), quiet.end_of_turn()), (chat.digest(), chat.end_of_turn()));
    // A context of several turns only ever grows.
    let mut context = quiet.open("Be brief.", "17 + 25?").unwrap();
    context.extend(quiet.encode_action("42").unwrap());
    context.extend(quiet.observe(false, "And 1 more?").unwrap());
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let quiet_turn = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let (beginning, more) = (turn("system", "Be brief.") + &turn("user", "17 + 25?"), turn("user", "And 1 more?"));
    assert_eq!(chat.decode(&context), format!("{beginning}{quiet_turn}42<|im_end|>\n{more}{quiet_turn}"));
    let error = set("enable_thinkng=false").err().unwrap().to_string();
    assert!(error.contains("enable_thinkng") && error.contains("enable_thinking"), "{error}");
}

#[test]
fn llama3_turns_are_written_as_its_template_says() {
    let Some(models) = models() else { return };
    let chat = Chat::load(&models.join("llama3_1-tokenizer")).unwrap();
    assert_eq!(chat.rewrites_history(), None);
    let open = chat.open("Be brief.", TEXT).unwrap();
    let turn = |role: &str, text: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>");
    let start = "<|start_header_id|>assistant<|end_header_id|>\n\n";
    let want = format!("<|begin_of_text|>{}{}{start}", turn("system", "Be brief."), turn("user", TEXT));
    assert_eq!(chat.decode(&open), want);
    // <|begin_of_text|>, <|start_header_id|>, system, <|end_header_id|>, and two line ends in one token.
    assert_eq!(open[..5], [128_000, 128_006, 9125, 128_007, 271]);
    assert_eq!(chat.end_of_turn(), 128_009);
    assert_eq!(chat.decode(&chat.observe(true, "x").unwrap()), format!("{}{start}", turn("user", "x")));
    assert_eq!(chat.decode(&chat.observe(false, "x").unwrap()), format!("<|eot_id|>{}{start}", turn("user", "x")));
}

#[test]
fn smollm2_is_read_from_its_file_and_answers() {
    let Some(models) = models() else { return };
    let mut policy = LocalPolicy::load(&models.join("SmolLM2-135M-Instruct.Q4_1.gguf"), Limits::default()).unwrap();
    let chat = policy.chat().clone();
    assert_eq!(policy.config().parameters(), 134_515_008);
    assert_eq!(chat.rewrites_history(), None);
    let ids = chat.encode_action(TEXT).unwrap();
    assert_eq!(chat.decode(&ids), TEXT);
    // Each digit is a token, and no space comes before the text or after a control token.
    assert_eq!(chat.encode_action("17 user").unwrap().len(), 3);
    let context = chat.open("You are a helpful assistant.", "What is the capital of France?").unwrap();
    assert!(chat.decode(&context).contains("<|im_start|>user\nWhat"));
    let request =
        Request { row: 0, context: &context, sampler: Sampler::whole(0.0, 24), window: 512, key: SampleKey([0; 32]) };
    let got = policy.sample(&[request]).unwrap().remove(0);
    let text = chat.decode(&got.tokens);
    assert!(text.contains("Paris"), "{text}");
    assert!(got.stop == Stop::EndOfTurn || got.stop == Stop::MaxTokens);
    let mean = got.logprobs.iter().sum::<f32>() / got.logprobs.len() as f32;
    assert!(mean > -1.0, "{mean}: {text}");
}
