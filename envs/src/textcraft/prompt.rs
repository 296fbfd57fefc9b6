//! The texts that tell an agent what it can do.

use crate::prompts::Prompts;

const RULES: &str = "\
You craft items from recipes by writing Python. Each of your turns is one short thought and one Python cell:
<thought>what you do next and why</thought>
<python>the code of the cell</python>
After each turn you are shown what the cell printed. Variables live on from cell to cell. Print what you want to see.

Rules of crafting
- Every item is either a base item, which cannot be crafted and is only taken from the inventory, or has a recipe.
- A recipe makes a fixed number of items (result_count) from fixed amounts of ingredients. craft() takes the total number \
of items that you want, which must be a multiple of result_count, and exactly the ingredients for that many: the amounts \
of the recipe times total / result_count. Extra or missing ingredients are refused, and nothing is used up then.
- Ingredients that are not in the inventory and are not base items must be crafted first.
- A goal asks for items on top of what is in the inventory when you begin. Base items suffice; do not waste them.
- When every item of your goal has been made, call finish() with a short message. Without finish() you fail.
";

const DELEGATION: &str = "
Delegation
- launch_subagent() gives some targets to a copy of yourself, which has its own steps and its own Python session and sees \
only the goal that you give it. It can delegate in turn. Delegating the intermediates of a deep recipe is recommended.
- The inventory is shared: a subagent takes from it and puts what it makes into it. So ask for what is still missing, \
count each shared intermediate once, and let two subagents run side by side only if they do not need the same intermediates.
- Calls must be awaited: `r = await launch_subagent({\"x\": 2})`, or several at once with \
`rs = await asyncio.gather(launch_subagent({\"x\": 2}), launch_subagent({\"y\": 1}))`. The value is the subagent's message.
- A goal takes about 8 to 10 steps per level of crafting_depth if one agent does it all; delegate when that is more than \
your budget, and craft a small goal yourself. Past the depth limit a call is refused with a text that says so.
- Look at the inventory again before you use what subagents made.
";

const CRAFT: &str = "\
craft(ingredients: dict, target: tuple) -> str
    Craft items. `ingredients` maps item names to total amounts, `target` is (item_name, total_count).
    Returns a message that says what was crafted, or why nothing was.
    Example: craft({\"m0_ore\": 4}, (\"m0_i1\", 6))

get_info(items: list) -> list
    What is known about each item: a list of dicts with item, can_craft, is_base, in_inventory, crafting_depth and
    recipes, a list of {\"ingredients\": {name: amount}, \"result_count\": n}.

view_inventory() -> dict
    The shared inventory now: item name to count.

finish(message: str) -> str
    End your task. Call it once every item of the goal has been made.
";

const LAUNCH: &str = "
async launch_subagent(targets: dict, context: str = \"\") -> str
    Let a subagent craft `targets`, item names mapped to counts, on top of what is in the inventory. `context` is shown
    to it along with its goal. Must be awaited. Returns its message, or a text that says why it was not launched.
    Example: await launch_subagent({\"m0_i1\": 6, \"m1_i1\": 2})
";

pub(super) const PROMPTS: Prompts = Prompts {
    brief_alone: "Craft the goal. Finish.",
    brief_delegating: "Craft the goal. Delegate missing parts. Finish.",
    full_alone: &[RULES],
    full_delegating: &[RULES, DELEGATION],
    tools: CRAFT,
    launch: LAUNCH,
};
