//! How the arguments of a call reach the parameters of a tool.

use crate::{Args, Value};

/// Matches arguments to parameters as Python does, the first `required` having no default. Errors are the texts of
/// Python's own `TypeError`s.
pub(crate) fn bind<'a, const N: usize>(
    function: &str,
    names: &[&str; N],
    required: usize,
    args: &'a Args,
) -> Result<[Option<&'a Value>; N], String> {
    let mut bound = [None; N];
    for (slot, value) in bound.iter_mut().zip(&args.args) {
        *slot = Some(value);
    }
    for (name, value) in &args.kwargs {
        let index = names.iter().position(|known| known == name);
        let slot = index.and_then(|index| bound.get_mut(index));
        match slot {
            None => return Err(format!("{function}() got an unexpected keyword argument '{name}'")),
            Some(Some(_)) => return Err(format!("{function}() got multiple values for argument '{name}'")),
            Some(slot) => *slot = Some(value),
        }
    }
    let given = args.args.len();
    if given > N {
        let takes = if required == N { format!("{N}") } else { format!("from {required} to {N}") };
        let plural = if N == 1 { "" } else { "s" };
        let were = if given == 1 { "was" } else { "were" };
        return Err(format!("{function}() takes {takes} positional argument{plural} but {given} {were} given"));
    }
    let unset = names.iter().zip(&bound).take(required).filter(|(_, slot)| slot.is_none());
    let missing: Vec<String> = unset.map(|(name, _)| format!("'{name}'")).collect();
    if missing.is_empty() {
        return Ok(bound);
    }
    let plural = if missing.len() == 1 { "" } else { "s" };
    Err(format!(
        "{function}() missing {} required positional argument{plural}: {}",
        missing.len(),
        missing.join(" and ")
    ))
}
