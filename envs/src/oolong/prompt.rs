//! The texts that tell an agent what it can do.

use crate::prompts::Prompts;

const RULES: &str = "\
You answer questions about long transcripts by writing Python. Each of your turns is one short thought and one Python cell:
<thought>what you do next and why</thought>
<python>the code of the cell</python>
After each turn you are shown what the cell printed. Variables live on from cell to cell.

The text is in the variable `context`, a str; it is not shown to you unless you print it. Look at its length first. Print the
parts you need and read them: people phrase the same thing in many ways, and speak of things that did not happen, so searching
with string matching or regular expressions finds the wrong ones.
";

const FLAT: &str = "
Read a long text part by part, keep notes in variables, and answer when you have read all of it.
";

const DELEGATION: &str = "
Delegation
- A text of more than a few thousand characters is too long for you alone: split it between lines into pieces, and give each to
  a subagent with launch_subagent(). It has its own steps, sees only the goal and has its piece as `context`. Do not split
  inside a line, leave nothing out and nothing twice. Do not delegate what you can read yourself.
- Await the calls, all at once: `parts = await asyncio.gather(*[launch_subagent(goal, piece) for piece in pieces])`.
- Ask for what adds up: numbers, dicts of numbers, lists in order. Work out percentages and the most common at the end, from
  the sums; never average them.
- `query` may state the goal as data, and its answer is then checked exactly: kind is count_, tally_, first_ or last_ with
  turns, words, phrase, rolls or spells, such as {\"kind\": \"count_rolls\", \"character\": \"Quill\"},
  {\"kind\": \"tally_turns\", \"by\": \"speaker\"} or {\"kind\": \"first_spells\", \"by\": \"spell\", \"n\": 3}.
";

const ANSWER: &str = "
If you were asked the question itself, finish with a text that holds the answer in \\boxed{}: a number, a name, or names with
commas between them. As a subagent, finish with the plain value that the goal asks for.
";

const FINISH: &str = "\
finish(result) -> Any
    End your task with your answer.
";

const LAUNCH: &str = "
async launch_subagent(goal: str, context: str, query: dict = None) -> Any
    Let a subagent work on `context` towards `goal`. Must be awaited. Returns what it finishes with, or a text that says why
    it was not launched.
";

pub(super) const PROMPTS: Prompts = Prompts {
    brief_alone: "Read `context`, answer in \\boxed{}.",
    brief_delegating: "Read `context`, delegate its pieces, answer in \\boxed{}.",
    full_alone: &[RULES, FLAT, ANSWER],
    full_delegating: &[RULES, DELEGATION, ANSWER],
    tools: FINISH,
    launch: LAUNCH,
};
