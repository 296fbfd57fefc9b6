//! The texts that tell an agent what it can do.

use crate::prompts::Prompts;

const RULES: &str = "\
You answer questions about a person's e-mail by writing Python. Each of your turns is one short thought and one Python cell:
<thought>what you do next and why</thought>
<python>the code of the cell</python>
After each turn you are shown what the cell printed. Variables live on from cell to cell. Print what you want to see.

Rules
- search_emails() finds mails by keywords. All keywords must occur, in the subject or in the text; each is taken as a phrase. \
If nothing is found, use fewer or other keywords. It shows at most 10 mails, the newest first; to see older ones narrow the \
dates.
- read_email() shows a whole mail. Mails are long: print only what you need.
- Both must be awaited: `hits = await search_emails([\"budget\"])`.
- When you know the answer, call finish() with JSON text: the answer, as short as the question allows, and the ids of the \
mails that it rests on: `import json` and then `finish(json.dumps({\"answer\": \"..\", \"sources\": [\"<id>\"]}))`. If the mails do not \
hold the answer, the answer is \"I don't know\". Without finish() you fail.
- `while` loops and input() are not allowed.
";

const DELEGATION: &str = "
Delegation
- launch_subagent() gives a question to a copy of yourself, which has its own steps, its own Python session and its own \
context, and looks into the same inbox. Delegating is worth it when an answer needs several mails that have nothing to do with \
each other: ask for what each of them says, and put the answers together.
- Write the question so that it can be understood alone: who, what, when, and in which form you need the answer.
- Never hand down your own question as it is, and do not launch subagents once you were told that you cannot.
- Calls must be awaited: `r = await launch_subagent(\"..\")`, or several at once with \
`rs = await asyncio.gather(launch_subagent(\"..\"), launch_subagent(\"..\"))`. The value is what the subagent gave to finish().
";

const TOOLS: &str = "\
async search_emails(keywords: list, from_addr: str = None, to_addr: str = None, sent_after: str = None,
                    sent_before: str = None, max_results: int = 10) -> list
    Search the inbox. `from_addr` and `to_addr` are whole addresses; dates are YYYY-MM-DD, `sent_after` included and
    `sent_before` excluded. At most 10 results. Returns a list of {\"message_id\", \"snippet\"}, the newest first.
    Example: await search_emails([\"offer\", \"stone facing\"], sent_after=\"2031-02-01\")

async read_email(message_id: str) -> dict
    A mail: message_id, date, subject, from_address, to_addresses, cc_addresses, bcc_addresses, body, file_name; or None if
    there is no mail with that id.

finish(answer: str) -> str
    End your task with JSON text: {\"answer\": \"..\", \"sources\": [\"<message id>\", ..]}.
";

const LAUNCH: &str = "
async launch_subagent(goal: str)
    Let a subagent answer a question about the same inbox. Returns what it gave to finish(), or a text that says why it was
    not launched.
    Example: await launch_subagent(\"Which amount does the mail about the oak panelling name? Answer with digits only.\")
";

pub(super) const PROMPTS: Prompts = Prompts {
    brief_alone: "Answer from the mails. Finish.",
    brief_delegating: "Answer from the mails. Delegate parts. Finish.",
    full_alone: &[RULES],
    full_delegating: &[RULES, DELEGATION],
    tools: TOOLS,
    launch: LAUNCH,
};
