//! rao-log's store beside other embedded stores: the same events, the same sync points, one run, ratios printed.
//!
//! Usage: `store-rivals [--events N] [--rounds N] [--dir DIR] [--only append,ack,scan,size,reopen] [--gigabytes G]`.
//! Rounds alternate between the stores, so that other work on the machine meets all of them; every figure is the
//! median over the rounds. Nothing here measures what a store promises: see the crash tests for that.

mod ack;
mod append;
mod events;
mod reopen;
mod rivals;
mod settings;
mod size;

use settings::Settings;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let settings = Settings::from_args(std::env::args().skip(1))?;
    settings.fresh_dir("")?;
    if settings.wants("append") || settings.wants("scan") {
        append::run(&settings)?;
    }
    if settings.wants("ack") {
        ack::run(&settings)?;
    }
    if settings.wants("size") {
        size::run(&settings)?;
    }
    if settings.wants("reopen") {
        reopen::run(&settings)?;
    }
    std::fs::remove_dir_all(&settings.dir)?;
    Ok(())
}

/// The median of figures, which must not be empty.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
