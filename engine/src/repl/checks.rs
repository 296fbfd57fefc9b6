//! What is decided about a cell before it runs: sure mistakes are refused, and `import asyncio` is sent to the prelude.
//!
//! The checks refuse only what cannot be meant: an awaitable that the cell drops, prints, reads a part of, or hands to
//! a synchronous tool. A cell that does not parse is left to the interpreter, which names the syntax error.

use std::collections::{BTreeMap, BTreeSet};

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{
    Alias, Expr, ExprCall, ExprFString, InterpolatedStringElement, Stmt, StmtImport, StmtImportFrom,
};
use ruff_python_parser::parse_module;
use ruff_text_size::{Ranged, TextRange};

use super::{CellLimits, Function};

/// Part of the engine's identity beside the prelude's text: raised whenever the rules below change.
pub(super) const VERSION: u32 = 1;

/// The prelude's stand-in for the `asyncio` module.
const SHIM: &str = "_rao_asyncio";

/// Functions of `asyncio` that give an awaitable.
const AWAITABLES: [&str; 3] = ["gather", "sleep", "wait_for"];

/// Builtins that no one hands an awaitable on purpose.
const SHOWING: [&str; 4] = ["print", "str", "repr", "len"];

/// The text of a refusal, for an engine that needs no stand-in for `asyncio`.
pub(super) fn refusal(code: &str, functions: &[Function], limits: &CellLimits) -> Option<String> {
    prepare(code, functions, limits).err()
}

/// Whether the code gives a name a value of its own anywhere; true for code that does not parse.
pub(super) fn may_bind(code: &str, name: &str) -> bool {
    if !code.contains(name) {
        return false;
    }
    let Ok(module) = parse_module(code) else { return true };
    let mut definitions = Definitions::default();
    definitions.visit_body(module.suite());
    definitions.binds(name)
}

/// The code to run, or the text of a refusal.
pub(super) fn prepare(code: &str, functions: &[Function], limits: &CellLimits) -> Result<String, String> {
    let Ok(module) = parse_module(code) else {
        return Ok(code.to_owned());
    };
    let mut scan = Scan::new(code, functions, limits);
    scan.collect_definitions(module.suite());
    scan.visit_body(module.suite());
    match scan.verdict() {
        Some(refusal) => Err(refusal),
        None => Ok(rewrite(code, scan.edits)),
    }
}

fn rewrite(code: &str, edits: Vec<(TextRange, String)>) -> String {
    let mut out = String::with_capacity(code.len());
    let mut done = 0;
    for (range, text) in edits {
        let (from, to) = (usize::from(range.start()), usize::from(range.end()));
        out.push_str(code.get(done..from).unwrap_or_default());
        out.push_str(&text);
        done = to;
    }
    out.push_str(code.get(done..).unwrap_or_default());
    out
}

/// An awaitable that was bound to a name.
struct Bound {
    name: String,
    call: String,
    at: TextRange,
}

struct Scan<'a> {
    code: &'a str,
    limits: &'a CellLimits,
    /// Functions whose call gives an awaitable: async tools and the cell's own `async def`s.
    awaitable: BTreeSet<String>,
    /// The host's synchronous functions.
    tools: BTreeSet<String>,
    /// What the cell calls the asyncio module.
    modules: BTreeSet<String>,
    bound: Vec<Bound>,
    /// How often each name is read, and how many of these reads cannot await it.
    reads: BTreeMap<String, (usize, usize)>,
    refusals: Vec<(TextRange, String)>,
    edits: Vec<(TextRange, String)>,
}

impl<'a> Scan<'a> {
    fn new(code: &'a str, functions: &[Function], limits: &'a CellLimits) -> Scan<'a> {
        let named = |asynchronous| {
            let some = functions.iter().filter(move |function| function.is_async == asynchronous);
            some.map(|function| function.name.clone()).collect()
        };
        Scan {
            code,
            limits,
            awaitable: named(true),
            tools: named(false),
            modules: BTreeSet::from(["asyncio".to_owned()]),
            bound: Vec::new(),
            reads: BTreeMap::new(),
            refusals: Vec::new(),
            edits: Vec::new(),
        }
    }

    /// Learns which names mean awaitable functions in this cell; a name with two meanings means none.
    fn collect_definitions(&mut self, body: &'a [Stmt]) {
        let mut definitions = Definitions::default();
        definitions.visit_body(body);
        self.awaitable.extend(definitions.asynchronous);
        self.modules.extend(definitions.modules);
        for other in definitions.others {
            self.awaitable.remove(&other);
            self.tools.remove(&other);
            self.modules.remove(&other);
        }
    }

    /// The function's name as written, if the expression is a call that gives an awaitable.
    fn awaitable_call(&self, expr: &Expr) -> Option<String> {
        let Expr::Call(ExprCall { func, .. }) = expr else { return None };
        match func.as_ref() {
            Expr::Name(name) => self.awaitable.contains(name.id.as_str()).then(|| name.id.to_string()),
            Expr::Attribute(attribute) => {
                let Expr::Name(module) = attribute.value.as_ref() else { return None };
                let known = AWAITABLES.contains(&attribute.attr.as_str());
                (known && self.modules.contains(module.id.as_str()))
                    .then(|| format!("{}.{}", module.id, attribute.attr))
            }
            _ => None,
        }
    }

    /// `expr` stands where an awaitable cannot be meant.
    fn misplaced(&mut self, expr: &Expr, how: &str) {
        if let Some(call) = self.awaitable_call(expr) {
            self.refusals.push((expr.range(), unawaited(&call, how)));
        } else if let Expr::Name(name) = expr {
            self.reads.entry(name.id.to_string()).or_default().1 += 1;
        }
    }

    fn bind(&mut self, target: &Expr, value: &Expr) {
        if let (Expr::Name(name), Some(call)) = (target, self.awaitable_call(value)) {
            self.bound.push(Bound { name: name.id.to_string(), call, at: value.range() });
        }
    }

    fn call(&mut self, call: &ExprCall) {
        let Expr::Name(name) = call.func.as_ref() else { return };
        if name.id.as_str() == "input" && self.limits.reject_input {
            let text = "input() cannot be used: there is no one to answer. Use the tools instead.".to_owned();
            self.refusals.push((call.range(), text));
        }
        let shows = SHOWING.contains(&name.id.as_str());
        if !shows && !self.tools.contains(name.id.as_str()) {
            return;
        }
        let how = format!("is handed to {}() without being awaited", name.id);
        for argument in &call.arguments.args {
            self.misplaced(argument, &how);
        }
        for keyword in &call.arguments.keywords {
            self.misplaced(&keyword.value, &how);
        }
    }

    fn f_string(&mut self, string: &ExprFString) {
        for element in string.value.elements() {
            if let InterpolatedStringElement::Interpolation(part) = element {
                self.misplaced(&part.expression, "is printed without being awaited");
            }
        }
    }

    fn import(&mut self, import: &StmtImport) {
        let plain = |alias: &&Alias| alias.name.as_str() != "asyncio";
        if import.names.iter().all(|alias| plain(&alias)) {
            return;
        }
        let mut parts: Vec<String> = Vec::new();
        let others: Vec<&str> = import.names.iter().filter(plain).map(|alias| self.text(alias.range)).collect();
        if !others.is_empty() {
            parts.push(format!("import {}", others.join(", ")));
        }
        for alias in import.names.iter().filter(|alias| !plain(alias)) {
            let name = alias.asname.as_ref().map_or("asyncio", |name| name.as_str());
            parts.push(format!("{name} = {SHIM}"));
        }
        self.edits.push((import.range, parts.join("; ")));
    }

    fn import_from(&mut self, import: &StmtImportFrom) {
        let module = import.module.as_ref().map(|name| name.as_str());
        if module != Some("asyncio") || import.level > 0 || import.names.iter().any(|alias| alias.name.as_str() == "*")
        {
            return;
        }
        let each = import.names.iter().map(|alias| {
            let name = alias.asname.as_ref().unwrap_or(&alias.name);
            format!("{name} = {SHIM}.{}", alias.name)
        });
        self.edits.push((import.range, each.collect::<Vec<_>>().join("; ")));
    }

    fn text(&self, range: TextRange) -> &'a str {
        self.code.get(usize::from(range.start())..usize::from(range.end())).unwrap_or_default()
    }

    /// The first refusal in the order of the code.
    fn verdict(&mut self) -> Option<String> {
        for bound in std::mem::take(&mut self.bound) {
            let (reads, hopeless) = self.reads.get(&bound.name).copied().unwrap_or_default();
            if reads == hopeless {
                let how = format!("is bound to `{}`, which this cell never awaits", bound.name);
                self.refusals.push((bound.at, unawaited(&bound.call, &how)));
            }
        }
        self.refusals.sort_by_key(|(range, _)| range.start());
        let (range, text) = self.refusals.first()?;
        let before = self.code.get(..usize::from(range.start())).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        Some(format!("CellRejected: line {line}: {text} Nothing of this cell was run."))
    }
}

fn unawaited(call: &str, how: &str) -> String {
    if call.ends_with("gather") {
        return format!("{call}(..) {how}, so nothing would run. Write `results = await {call}(..)`.");
    }
    format!(
        "{call}(..) {how}, so its result would be lost. Write `result = await {call}(..)`, or, for several at once, \
         `results = await asyncio.gather({call}(..), {call}(..))`."
    )
}

impl<'a> Visitor<'a> for Scan<'a> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Expr(statement) => self.misplaced(&statement.value, "is called without being awaited"),
            Stmt::Assign(assign) => {
                if let [target] = assign.targets.as_slice() {
                    self.bind(target, &assign.value);
                }
            }
            Stmt::AnnAssign(assign) => {
                if let Some(value) = &assign.value {
                    self.bind(&assign.target, value);
                }
            }
            Stmt::While(looping) if self.limits.reject_while => {
                let text = "`while` loops are not allowed here. Use a `for` loop with a fixed range.".to_owned();
                self.refusals.push((looping.range, text));
            }
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            _ => {}
        }
        walk_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Name(name) if name.ctx.is_load() => {
                self.reads.entry(name.id.to_string()).or_default().0 += 1;
            }
            Expr::Named(named) => self.bind(&named.target, &named.value),
            Expr::Call(call) => self.call(call),
            Expr::FString(string) => self.f_string(string),
            Expr::Subscript(part) => self.misplaced(&part.value, "is indexed before being awaited"),
            Expr::Attribute(part) => self.misplaced(&part.value, "is read from before being awaited"),
            _ => {}
        }
        walk_expr(self, expr);
    }
}

/// The names that a cell defines.
#[derive(Default)]
struct Definitions {
    asynchronous: BTreeSet<String>,
    modules: BTreeSet<String>,
    /// Names with another meaning.
    others: BTreeSet<String>,
}

impl Definitions {
    fn binds(&self, name: &str) -> bool {
        self.asynchronous.contains(name) || self.modules.contains(name) || self.others.contains(name)
    }
}

impl<'a> Visitor<'a> for Definitions {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::FunctionDef(def) => {
                let names = if def.is_async { &mut self.asynchronous } else { &mut self.others };
                names.insert(def.name.to_string());
                for parameter in def.parameters.iter() {
                    self.others.insert(parameter.name().to_string());
                }
            }
            Stmt::ClassDef(def) => {
                self.others.insert(def.name.to_string());
                // Methods are reached through instances only: a bare name never means one.
                return;
            }
            Stmt::Import(import) => {
                for alias in import.names.iter().filter(|alias| alias.name.as_str() == "asyncio") {
                    self.modules.insert(alias.asname.as_ref().unwrap_or(&alias.name).to_string());
                }
            }
            Stmt::ImportFrom(import) if import.module.as_ref().is_some_and(|name| name.as_str() == "asyncio") => {
                for alias in import.names.iter().filter(|alias| AWAITABLES.contains(&alias.name.as_str())) {
                    self.asynchronous.insert(alias.asname.as_ref().unwrap_or(&alias.name).to_string());
                }
            }
            _ => {}
        }
        walk_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Name(name) = expr
            && name.ctx.is_store()
        {
            self.others.insert(name.id.to_string());
        }
        walk_expr(self, expr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(code: &str) -> Result<String, String> {
        let functions = [Function::sync("craft"), Function::sync("finish"), Function::asynchronous("launch_subagent")];
        prepare(code, &functions, &CellLimits { reject_while: true, ..CellLimits::default() })
    }

    #[test]
    fn sure_mistakes_are_refused() {
        let cases = [
            ("launch_subagent('a')", "line 1: launch_subagent(..) is called without being awaited"),
            ("x = 1\nif x:\n    launch_subagent('a')", "line 3: launch_subagent(..) is called"),
            ("r = launch_subagent('a')", "bound to `r`, which this cell never awaits"),
            ("r: int = launch_subagent('a')\nprint(r)", "bound to `r`"),
            ("r = launch_subagent('a')\nfinish(r)", "bound to `r`"),
            ("r = launch_subagent('a')\nprint(f'got {r}', r['x'], r.y)", "bound to `r`"),
            ("if (r := launch_subagent('a')): pass", "bound to `r`"),
            ("print(launch_subagent('a'))", "handed to print()"),
            ("finish(launch_subagent('a'))", "handed to finish()"),
            ("craft(items=launch_subagent('a'))", "handed to craft()"),
            ("print(f'{launch_subagent(1)}')", "printed without being awaited"),
            ("n = launch_subagent('a')['n']", "indexed before being awaited"),
            ("n = launch_subagent('a').n", "read from before being awaited"),
            ("async def go(): pass\ngo()", "line 2: go(..) is called"),
            ("import asyncio as aio\naio.gather(launch_subagent('a'))", "nothing would run"),
            ("from asyncio import gather\ngather(launch_subagent('a'))", "nothing would run"),
            ("gs = asyncio.gather(launch_subagent('a'))", "nothing would run"),
            ("while True: pass", "`while` loops are not allowed"),
            ("x = input('?')", "input() cannot be used"),
        ];
        for (code, expected) in cases {
            let refusal = checked(code).expect_err(code);
            assert!(refusal.starts_with("CellRejected: line ") && refusal.contains(expected), "{code}: {refusal}");
        }
        let first = checked("launch_subagent(1)\nlaunch_subagent(2)").unwrap_err();
        assert!(first.contains("line 1") && first.contains("await asyncio.gather(launch_subagent(..), "), "{first}");
    }

    #[test]
    fn what_may_be_meant_is_let_through() {
        let cases = [
            "r = await launch_subagent('a')",
            "t = launch_subagent('a')\nu = launch_subagent('b')\nprint(await t, await u)",
            "ts = [launch_subagent(g) for g in 'ab']\nrs = await asyncio.gather(*ts)",
            "ts = []\nfor g in 'ab':\n    ts.append(launch_subagent(g))",
            "r = launch_subagent('a')\nr = await r\nprint(r['x'])",
            "def start(g):\n    return launch_subagent(g)\nprint(await start(1))",
            "t = asyncio.create_task(launch_subagent('a'))\nprint(await t)",
            "t = {'k': launch_subagent('a')}",
            "def launch_subagent(x):\n    return x\nlaunch_subagent(1)",
            "for launch_subagent in [print]:\n    launch_subagent(1)",
            "class C:\n    async def craft(self): pass\ncraft({'a': 1})",
            "print(await asyncio.gather(launch_subagent('a')))",
            "print(f'{await launch_subagent(1)}')",
            "x = (",
        ];
        for code in cases {
            assert_eq!(checked(code), Ok(code.to_owned()));
        }
    }

    #[test]
    fn asyncio_is_sent_to_the_prelude() {
        let cases = [
            ("import asyncio", "asyncio = _rao_asyncio"),
            ("import asyncio as aio # x", "aio = _rao_asyncio # x"),
            ("if 1: import json as j, asyncio; x = 1", "if 1: import json as j; asyncio = _rao_asyncio; x = 1"),
            (
                "from asyncio import (gather,\n  sleep as s)\nx = 'import asyncio'",
                "gather = _rao_asyncio.gather; s = _rao_asyncio.sleep\nx = 'import asyncio'",
            ),
            (
                "def f():\n    import asyncio\nimport asyncio",
                "def f():\n    asyncio = _rao_asyncio\nasyncio = _rao_asyncio",
            ),
            ("import asyncio.events", "import asyncio.events"),
            ("from asyncio import *", "from asyncio import *"),
        ];
        for (code, expected) in cases {
            assert_eq!(checked(code).as_deref(), Ok(expected));
        }
    }
}
