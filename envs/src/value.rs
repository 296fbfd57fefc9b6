//! Python values as the tools see them, with a lossless JSON form.

use serde_json::{Map, Number, Value as Json, json};

use crate::text::first_place;

/// A value that crosses the border between a cell and the host.
///
/// Dictionaries keep their order; keys may be any value. What has no counterpart here (functions, instances, integers
/// beyond 64 bits) arrives as [`Value::Opaque`].
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Value {
    /// `None`.
    #[default]
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string.
    Str(String),
    /// A list.
    List(Vec<Value>),
    /// A tuple.
    Tuple(Vec<Value>),
    /// A dictionary in insertion order.
    Dict(Vec<(Value, Value)>),
    /// Anything else, by its type's name and its `repr`.
    Opaque {
        /// Such as `function`.
        type_name: String,
        /// What `repr` shows.
        repr: String,
    },
}

/// Strings of this many bytes are written as their place in a text that has them.
const LONG: usize = 1_024;

/// The tag of such a place.
const SLICE: &str = "$slice";

/// Why JSON is not a [`Value`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// Not JSON at all.
    #[error("a stored value is not JSON ({0}): the log may be damaged; run `rao-log verify`")]
    Syntax(String),
    /// JSON of a shape that [`Value::to_json`] never writes.
    #[error("a stored value has an unknown shape at {found}: expected {expected}")]
    Shape {
        /// What was expected.
        expected: &'static str,
        /// The offending JSON, shortened.
        found: String,
    },
    /// A number that a 64-bit signed integer or a double cannot hold.
    #[error("the stored number {0} is outside the range of 64-bit integers")]
    Number(String),
}

impl ValueError {
    fn shape(expected: &'static str, found: &Json) -> Self {
        Self::Shape { expected, found: found.to_string().chars().take(80).collect() }
    }
}

impl Value {
    /// A string value.
    pub fn str(text: impl Into<String>) -> Self {
        Self::Str(text.into())
    }

    /// A dictionary with string keys, in the order given.
    pub fn dict<K: Into<String>>(pairs: impl IntoIterator<Item = (K, Value)>) -> Self {
        Self::Dict(pairs.into_iter().map(|(key, value)| (Self::Str(key.into()), value)).collect())
    }

    /// The name that Python's `type(x).__name__` gives.
    pub fn python_type(&self) -> &str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Opaque { type_name, .. } => type_name,
        }
    }

    /// Python's truth value; opaque values are true.
    pub fn truthy(&self) -> bool {
        match self {
            Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) => !items.is_empty(),
            Self::Dict(pairs) => !pairs.is_empty(),
            Self::Opaque { .. } => true,
        }
    }

    /// The value as an integer, as Python's `isinstance(x, int)` sees it: booleans count.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    /// The text of a string value.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }

    /// What Python's `repr` shows.
    pub fn repr(&self) -> String {
        let mut out = String::new();
        self.write_repr(&mut out);
        out
    }

    /// What Python's `str` gives: strings as they are, everything else as `repr`.
    pub fn to_text(&self) -> String {
        if let Self::Str(text) = self { text.clone() } else { self.repr() }
    }

    fn write_repr(&self, out: &mut String) {
        match self {
            Self::None => out.push_str("None"),
            Self::Bool(true) => out.push_str("True"),
            Self::Bool(false) => out.push_str("False"),
            Self::Int(value) => out.push_str(&value.to_string()),
            Self::Float(value) => write_float(*value, out),
            Self::Str(text) => write_str(text, out),
            Self::List(items) => write_items(items, "[", "]", out),
            Self::Tuple(items) if items.len() == 1 => write_items(items, "(", ",)", out),
            Self::Tuple(items) => write_items(items, "(", ")", out),
            Self::Dict(pairs) => {
                out.push('{');
                for (index, (key, value)) in pairs.iter().enumerate() {
                    if index > 0 {
                        out.push_str(", ");
                    }
                    key.write_repr(out);
                    out.push_str(": ");
                    value.write_repr(out);
                }
                out.push('}');
            }
            Self::Opaque { repr, .. } => out.push_str(repr),
        }
    }

    /// The value as JSON that [`Value::from_json`] reads back unchanged.
    ///
    /// Tuples become `{"$tuple": [..]}`; dictionaries whose keys are distinct strings without a leading `$` become
    /// objects, all others `{"$dict": [[key, value], ..]}`; floats outside JSON become `{"$float": "nan"|"inf"|"-inf"}`;
    /// opaque values `{"$opaque": {"type", "repr"}}`. Text form: at most about 60 levels deep, JSON's own limit.
    pub fn to_json(&self) -> Json {
        match self {
            Self::None => Json::Null,
            Self::Bool(value) => json!(value),
            Self::Int(value) => json!(value),
            Self::Float(value) => float_json(*value),
            Self::Str(text) => json!(text),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Tuple(items) => json!({ "$tuple": items.iter().map(Self::to_json).collect::<Vec<_>>() }),
            Self::Dict(pairs) => dict_json(pairs),
            Self::Opaque { type_name, repr } => json!({ "$opaque": { "type": type_name, "repr": repr } }),
        }
    }

    /// [`Value::to_json`] as compact text.
    pub fn to_json_text(&self) -> String {
        self.to_json().to_string()
    }

    /// Reads what [`Value::to_json`] wrote.
    ///
    /// # Errors
    /// [`ValueError`] for a shape that it never writes, or an integer beyond 64 signed bits.
    pub fn from_json(json: &Json) -> Result<Self, ValueError> {
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => number_value(number)?,
            Json::String(text) => Self::Str(text.clone()),
            Json::Array(items) => Self::List(items.iter().map(Self::from_json).collect::<Result<_, _>>()?),
            Json::Object(map) => object_value(map, json)?,
        })
    }

    /// [`Value::from_json`] from text.
    ///
    /// # Errors
    /// [`ValueError`] for text that is not JSON or not a value's JSON.
    pub fn from_json_text(text: &str) -> Result<Self, ValueError> {
        Self::from_json(&parse(text)?)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

/// The arguments of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Args {
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Keyword arguments in the order given; names are distinct.
    pub kwargs: Vec<(String, Value)>,
}

impl Args {
    /// Positional arguments only.
    pub fn positional(args: impl IntoIterator<Item = Value>) -> Self {
        Self { args: args.into_iter().collect(), kwargs: Vec::new() }
    }

    /// The same with one more keyword argument.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: Value) -> Self {
        self.kwargs.push((name.into(), value));
        self
    }

    /// The arguments as the call was written, such as `craft({'a': 1}, target=('b', 2))` without the name.
    pub fn repr(&self) -> String {
        let positional = self.args.iter().map(Value::repr);
        let keyword = self.kwargs.iter().map(|(name, value)| format!("{name}={}", value.repr()));
        format!("({})", positional.chain(keyword).collect::<Vec<_>>().join(", "))
    }

    /// `{"args": [..], "kwargs": {..}}`, values as [`Value::to_json`] writes them.
    pub fn to_json(&self) -> Json {
        let kwargs: Map<String, Json> =
            self.kwargs.iter().map(|(name, value)| (name.clone(), value.to_json())).collect();
        json!({ "args": self.args.iter().map(Value::to_json).collect::<Vec<_>>(), "kwargs": kwargs })
    }

    /// [`Args::to_json`] as compact text.
    pub fn to_json_text(&self) -> String {
        self.to_json().to_string()
    }

    /// Reads what [`Args::to_json`] wrote.
    ///
    /// # Errors
    /// [`ValueError`] for any other shape.
    pub fn from_json(json: &Json) -> Result<Self, ValueError> {
        let (Some(Json::Array(args)), Some(Json::Object(kwargs))) = (json.get("args"), json.get("kwargs")) else {
            return Err(ValueError::shape("an object with `args` and `kwargs`", json));
        };
        Ok(Self {
            args: args.iter().map(Value::from_json).collect::<Result<_, _>>()?,
            kwargs: kwargs
                .iter()
                .map(|(name, value)| Ok((name.clone(), Value::from_json(value)?)))
                .collect::<Result<_, ValueError>>()?,
        })
    }

    /// [`Args::to_json_text`], with each long string argument that is a piece of `whole` written as its place there,
    /// `{"$slice": [from, to]}` in bytes: a text that is handed on piece by piece is then not written again.
    pub fn to_json_text_within(&self, whole: &str) -> String {
        let place = |value: &Value| -> Option<Json> {
            let piece = value.as_str().filter(|piece| piece.len() >= LONG)?;
            let from = first_place(whole, piece)?;
            Some(json!({ SLICE: [from, from + piece.len()] }))
        };
        let write = |value: &Value| place(value).unwrap_or_else(|| value.to_json());
        let kwargs: Map<String, Json> = self.kwargs.iter().map(|(name, value)| (name.clone(), write(value))).collect();
        json!({ "args": self.args.iter().map(write).collect::<Vec<_>>(), "kwargs": kwargs }).to_string()
    }

    /// Reads what [`Args::to_json_text_within`] wrote for the same `whole`.
    ///
    /// # Errors
    /// [`ValueError`] for any other shape, and for a place that `whole` does not have.
    pub fn from_json_text_within(text: &str, whole: &str) -> Result<Self, ValueError> {
        let mut json = parse(text)?;
        let restore = |value: &mut Json| -> Result<(), ValueError> {
            let Some(place) = value.get(SLICE) else { return Ok(()) };
            let at = |index: usize| place.get(index).and_then(Json::as_u64).and_then(|at| usize::try_from(at).ok());
            let piece = at(0).zip(at(1)).and_then(|(from, to)| whole.get(from..to));
            *value =
                Json::String(piece.ok_or_else(|| ValueError::shape("a place in the node's text", place))?.to_owned());
            Ok(())
        };
        if let Some(args) = json.get_mut("args").and_then(Json::as_array_mut) {
            args.iter_mut().try_for_each(restore)?;
        }
        if let Some(kwargs) = json.get_mut("kwargs").and_then(Json::as_object_mut) {
            kwargs.values_mut().try_for_each(restore)?;
        }
        Self::from_json(&json)
    }

    /// [`Args::from_json`] from text.
    ///
    /// # Errors
    /// [`ValueError`] for text that is not JSON or not the arguments' JSON.
    pub fn from_json_text(text: &str) -> Result<Self, ValueError> {
        Self::from_json(&parse(text)?)
    }
}

fn parse(text: &str) -> Result<Json, ValueError> {
    serde_json::from_str(text).map_err(|error| ValueError::Syntax(error.to_string()))
}

fn float_json(value: f64) -> Json {
    match Number::from_f64(value) {
        Some(number) => Json::Number(number),
        None if value.is_nan() => json!({ "$float": "nan" }),
        None if value > 0.0 => json!({ "$float": "inf" }),
        None => json!({ "$float": "-inf" }),
    }
}

fn dict_json(pairs: &[(Value, Value)]) -> Json {
    let mut map = Map::with_capacity(pairs.len());
    for (key, value) in pairs {
        let plain = key.as_str().filter(|name| !name.starts_with('$'));
        let clash = match plain {
            Some(name) => map.insert(name.to_owned(), value.to_json()).is_some(),
            None => true,
        };
        if clash {
            let list: Vec<Json> = pairs.iter().map(|(key, value)| json!([key.to_json(), value.to_json()])).collect();
            return json!({ "$dict": list });
        }
    }
    Json::Object(map)
}

fn number_value(number: &Number) -> Result<Value, ValueError> {
    if let Some(value) = number.as_i64() {
        Ok(Value::Int(value))
    } else if number.is_f64() {
        number.as_f64().map(Value::Float).ok_or_else(|| ValueError::Number(number.to_string()))
    } else {
        Err(ValueError::Number(number.to_string()))
    }
}

fn object_value(map: &Map<String, Json>, whole: &Json) -> Result<Value, ValueError> {
    let tag = map.iter().next().filter(|(key, _)| key.starts_with('$'));
    let Some((tag, body)) = tag else {
        if map.keys().any(|key| key.starts_with('$')) {
            return Err(ValueError::shape("plain keys only", whole));
        }
        let pairs = map.iter().map(|(key, value)| Ok((Value::Str(key.clone()), Value::from_json(value)?)));
        return Ok(Value::Dict(pairs.collect::<Result<_, ValueError>>()?));
    };
    if map.len() != 1 {
        return Err(ValueError::shape("one `$` key alone", whole));
    }
    match (tag.as_str(), body) {
        ("$tuple", Json::Array(items)) => {
            Ok(Value::Tuple(items.iter().map(Value::from_json).collect::<Result<_, _>>()?))
        }
        ("$dict", Json::Array(pairs)) => Ok(Value::Dict(pairs.iter().map(pair_value).collect::<Result<_, _>>()?)),
        ("$float", Json::String(text)) => match text.as_str() {
            "nan" => Ok(Value::Float(f64::NAN)),
            "inf" => Ok(Value::Float(f64::INFINITY)),
            "-inf" => Ok(Value::Float(f64::NEG_INFINITY)),
            _ => Err(ValueError::shape("`nan`, `inf` or `-inf`", body)),
        },
        ("$opaque", Json::Object(fields)) => match (fields.get("type"), fields.get("repr")) {
            (Some(Json::String(type_name)), Some(Json::String(repr))) if fields.len() == 2 => {
                Ok(Value::Opaque { type_name: type_name.clone(), repr: repr.clone() })
            }
            _ => Err(ValueError::shape("`type` and `repr`", body)),
        },
        _ => Err(ValueError::shape("`$tuple`, `$dict`, `$float` or `$opaque`", whole)),
    }
}

fn pair_value(pair: &Json) -> Result<(Value, Value), ValueError> {
    match pair.as_array().map(Vec::as_slice) {
        Some([key, value]) => Ok((Value::from_json(key)?, Value::from_json(value)?)),
        _ => Err(ValueError::shape("a pair [key, value]", pair)),
    }
}

fn write_items(items: &[Value], open: &str, close: &str, out: &mut String) {
    out.push_str(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        item.write_repr(out);
    }
    out.push_str(close);
}

/// Python's choice of quotes and escapes.
fn write_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            c if printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                out.push_str(&match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
    }
    out.push(quote);
}

/// Whether Python prints a non-ASCII character as it is. A leading letter keeps combining marks printable, as Python does.
fn printable(c: char) -> bool {
    c > '~' && format!("a{c}").escape_debug().count() == 2
}

/// Python's shortest round-trip notation.
fn write_float(value: f64, out: &mut String) {
    if value.is_nan() {
        return out.push_str("nan");
    }
    if value.is_infinite() {
        return out.push_str(if value > 0.0 { "inf" } else { "-inf" });
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        out.push_str(&format!("{digits}e{sign}{:02}", exponent.abs()));
    } else {
        let plain = format!("{value}");
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_pieces_of_a_text_are_written_as_places() {
        let whole: String = (0..1_000).map(|n| format!("{n}: h\u{e9}\n")).collect();
        let (from, to) = (whole.find("200:").unwrap(), whole.find("500:").unwrap());
        let (piece, other) = (&whole[from..to], "x".repeat(3_000));
        let args = Args::positional([Value::str("goal"), Value::str(piece)]).with("query", Value::str(other.clone()));
        let text = args.to_json_text_within(&whole);
        assert!(text.contains(&format!(r#"{{"$slice":[{from},{to}]}}"#)) && text.contains(&other), "{text}");
        assert_eq!(Args::from_json_text_within(&text, &whole), Ok(args.clone()));
        assert!(Args::from_json_text_within(&text, &whole[..to - 1]).is_err());
        assert!(Args::from_json_text(&text).is_err());
        assert_eq!(args.to_json_text_within(""), args.to_json_text());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::None),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<f64>().prop_map(Value::Float),
            prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(-0.0)]
                .prop_map(Value::Float),
            "[$a-c\"'\\\\\n\u{e9}]{0,6}".prop_map(Value::Str),
            ("[a-z]{1,4}", ".{0,5}").prop_map(|(type_name, repr)| Value::Opaque { type_name, repr }),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Tuple),
                prop::collection::vec((inner.clone(), inner.clone()), 0..4).prop_map(Value::Dict),
                prop::collection::vec(("[$a-c]{0,3}".prop_map(Value::Str), inner), 0..4).prop_map(Value::Dict),
            ]
        })
    }

    /// Debug text tells `-0.0` from `0.0` and finds NaN equal to itself, unlike `==`.
    fn same(a: &impl std::fmt::Debug, b: &impl std::fmt::Debug) -> bool {
        format!("{a:?}") == format!("{b:?}")
    }

    proptest! {
        #[test]
        fn json_round_trips_every_value(value in any_value()) {
            let back = Value::from_json_text(&value.to_json_text()).unwrap();
            prop_assert!(same(&back, &value), "{back:?} is not {value:?}");
        }

        #[test]
        fn json_round_trips_arguments(
            args in prop::collection::vec(any_value(), 0..3),
            kwargs in prop::collection::btree_map("[$a-z]{0,4}", any_value(), 0..3),
        ) {
            let args = Args { args, kwargs: kwargs.into_iter().rev().collect() };
            prop_assert!(same(&Args::from_json_text(&args.to_json_text()).unwrap(), &args));
        }
    }

    #[test]
    fn json_has_the_documented_shapes() {
        let value = Value::Dict(vec![
            ("t".into(), Value::Tuple(vec![Value::Int(1), "a".into()])),
            ("d".into(), Value::Dict(vec![(Value::Int(1), Value::None)])),
            ("f".into(), Value::Float(f64::NAN)),
            ("whole".into(), Value::Float(2.0)),
        ]);
        let text = r#"{"t":{"$tuple":[1,"a"]},"d":{"$dict":[[1,null]]},"f":{"$float":"nan"},"whole":2.0}"#;
        assert_eq!(value.to_json_text(), text);
    }

    #[test]
    fn bad_json_is_refused_with_the_reason() {
        let shape = |text: &str| matches!(Value::from_json_text(text), Err(ValueError::Shape { .. }));
        assert!(matches!(Value::from_json_text("{"), Err(ValueError::Syntax(_))));
        assert!(matches!(Value::from_json_text("18446744073709551615"), Err(ValueError::Number(_))));
        for text in [
            r#"{"$tuple":1}"#,
            r#"{"$set":[1]}"#,
            r#"{"$tuple":[],"a":1}"#,
            r#"{"a":1,"$tuple":[]}"#,
            r#"{"$dict":[[1]]}"#,
            r#"{"$float":"NaN"}"#,
            r#"{"$opaque":{"type":"x"}}"#,
        ] {
            assert!(shape(text), "{text}");
        }
        assert!(matches!(Args::from_json_text(r#"{"args":[]}"#), Err(ValueError::Shape { .. })));
    }

    #[test]
    fn repr_is_pythons() {
        let cases = [
            (Value::str("it's"), r#""it's""#),
            (Value::str("it's \"x\""), r#"'it\'s "x"'"#),
            (Value::str("a\n\\\u{7f}\u{a0}\u{e9}\u{200b}e\u{301}"), "'a\\n\\\\\\x7f\\xa0\u{e9}\\u200be\u{301}'"),
            (Value::Float(1.0), "1.0"),
            (Value::Float(-0.0), "-0.0"),
            (Value::Float(0.0001), "0.0001"),
            (Value::Float(0.00001), "1e-05"),
            (Value::Float(1.5e16), "1.5e+16"),
            (Value::Float(1e15), "1000000000000000.0"),
            (Value::Float(1e22), "1e+22"),
            (Value::Float(0.1), "0.1"),
            (Value::Tuple(vec![Value::Int(1)]), "(1,)"),
            (Value::Tuple(vec![]), "()"),
            (Value::dict([("a", Value::List(vec![Value::None, Value::Bool(true)]))]), "{'a': [None, True]}"),
        ];
        for (value, expected) in cases {
            assert_eq!(value.repr(), expected);
        }
        let args = Args::positional([Value::Int(1)]).with("k", Value::str("v"));
        assert_eq!(args.repr(), "(1, k='v')");
    }
}
