//! A small invented world: people, towns, countries, schools, works and prizes, a page about each, and questions that
//! lead from page to page.

mod graph;
mod language;
mod names;
mod pages;
mod relations;
mod walk;

pub use graph::{Entity, EntityId, Graph, GraphConfig, Kind, Node};
pub use language::Description;
pub use relations::{RELATIONS, Relation};
pub use walk::{MOST_HOPS, World};
