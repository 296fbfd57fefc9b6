//! Curves of a training as SVG, from its metrics.

use plotters::prelude::*;

use crate::trainer::Metrics;

/// Points of a curve on a plot; of more, evenly spaced ones are shown.
const POINTS: usize = 1000;
const SIZE: (u32, u32) = (720, 400);
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 96, 20),
    RGBColor(44, 140, 60),
    RGBColor(190, 40, 50),
    RGBColor(120, 90, 170),
    RGBColor(90, 90, 90),
];

/// A curve: what it is called, and its points over the optimizer steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// `(version, value)`, ascending.
    pub points: Vec<(f64, f64)>,
}

/// A plot: a file's name without its ending, a title, and curves over the optimizer steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// The file's name without its ending.
    pub file: &'static str,
    /// The title.
    pub title: &'static str,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("plot {file}: {reason}")]
pub struct PlotError {
    /// Which plot.
    pub file: &'static str,
    /// The reason.
    pub reason: String,
}

/// Every plot that the metrics have points for. Deterministic figures only.
#[must_use]
pub fn plots(all: &[Metrics]) -> Vec<Plot> {
    let one = |file, title, name: &str, value: &dyn Fn(&Metrics) -> Option<f64>| Plot {
        file,
        title,
        curves: vec![curve(all, name, value)],
    };
    let batch = |value: fn(&crate::trainer::BatchSummary) -> f64| move |m: &Metrics| m.batch.as_ref().map(value);
    let mut plots = vec![
        one("loss", "Loss", "loss", &|m| Some(m.loss)),
        one("reward", "Mean root reward", "reward", &batch(|b| b.reward.mean)),
        one("entropy", "Entropy of the policy at its tokens (nats)", "entropy", &|m| Some(m.entropy)),
        one("kl", "KL term against the reference (nats)", "KL", &|m| m.kl),
    ];
    let named = |m: &Metrics| m.batch.iter().flat_map(|b| b.success_by_difficulty.keys().cloned()).collect::<Vec<_>>();
    plots.push(many("success_by_difficulty", "Own success of roots by difficulty", all, &named, &|m, name| {
        Some(m.batch.as_ref()?.success_by_difficulty.get(name)?.mean)
    }));
    let depths = |m: &Metrics| {
        m.batch.iter().flat_map(|b| b.success_by_depth.keys().map(|d| format!("depth {d}"))).collect::<Vec<_>>()
    };
    plots.push(many("success_by_depth", "Own success of nodes by depth", all, &depths, &|m, name| {
        let depth: u32 = name.strip_prefix("depth ")?.parse().ok()?;
        Some(m.batch.as_ref()?.success_by_depth.get(&depth)?.mean)
    }));
    plots.push(Plot {
        file: "rollouts",
        title: "Nodes and depth of a rollout",
        curves: vec![curve(all, "nodes", &batch(|b| b.nodes.mean)), curve(all, "depth", &batch(|b| b.depth.mean))],
    });
    plots.push(Plot {
        file: "ratio",
        title: "Importance ratio",
        curves: vec![
            curve(all, "mean ratio", &|m| Some(m.mean_ratio)),
            curve(all, "clipped share", &|m| Some(m.clip_fraction)),
        ],
    });
    let groups = |m: &Metrics| m.groups.0.keys().cloned().collect::<Vec<_>>();
    plots.push(many(
        "gradient_norm",
        "Gradient norm before clipping, by group of tensors",
        all,
        &groups,
        &|m, name| Some(m.groups.0.get(name)?.gradient),
    ));
    plots.push(many("update_norm", "Norm of the update, by group of tensors", all, &groups, &|m, name| {
        Some(m.groups.0.get(name)?.update)
    }));
    for plot in &mut plots {
        plot.curves.retain(|curve| !curve.points.is_empty());
    }
    plots.retain(|plot| !plot.curves.is_empty());
    plots
}

fn curve(all: &[Metrics], name: &str, value: &dyn Fn(&Metrics) -> Option<f64>) -> Curve {
    #[expect(clippy::cast_precision_loss, reason = "no training has 2^53 steps")]
    let point = |m: &Metrics| value(m).filter(|y| y.is_finite()).map(|y| (m.version as f64, y));
    Curve { name: name.to_owned(), points: all.iter().filter_map(point).collect() }
}

fn many(
    file: &'static str,
    title: &'static str,
    all: &[Metrics],
    names: &dyn Fn(&Metrics) -> Vec<String>,
    value: &dyn Fn(&Metrics, &str) -> Option<f64>,
) -> Plot {
    let distinct: std::collections::BTreeSet<String> = all.iter().flat_map(names).collect();
    let curves = distinct.iter().map(|name| curve(all, name, &|m| value(m, name))).collect();
    Plot { file, title, curves }
}

/// Draws a plot over the optimizer steps.
///
/// # Errors
/// When the drawing library refuses.
pub fn draw(plot: &Plot) -> Result<String, PlotError> {
    let mut svg = String::new();
    let failed = |error: &dyn std::fmt::Display| PlotError { file: plot.file, reason: error.to_string() };
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|e| failed(&e))?;
        let points = || plot.curves.iter().flat_map(|curve| &curve.points);
        let (x, y) = (range(points().map(|p| p.0)), range(points().map(|p| p.1)));
        let mut chart = ChartBuilder::on(&area)
            .caption(plot.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(x.0..x.1, y.0..y.1)
            .map_err(|e| failed(&e))?;
        chart.configure_mesh().x_desc("optimizer steps").light_line_style(WHITE).draw().map_err(|e| failed(&e))?;
        for (curve, colour) in plot.curves.iter().zip(COLOURS.iter().cycle()) {
            let step = curve.points.len().div_ceil(POINTS).max(1);
            let shown: Vec<(f64, f64)> = curve.points.iter().rev().step_by(step).rev().copied().collect();
            // A lone point has no line.
            chart
                .draw_series(shown.iter().filter(|_| shown.len() < 3).map(|p| Circle::new(*p, 3, colour.filled())))
                .map_err(|e| failed(&e))?;
            chart
                .draw_series(LineSeries::new(shown, colour.stroke_width(2)))
                .map_err(|e| failed(&e))?
                .label(curve.name.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        if plot.curves.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .draw()
                .map_err(|e| failed(&e))?;
        }
        area.present().map_err(|e| failed(&e))?;
    }
    Ok(svg)
}

/// From the least to the greatest value, with some room.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        return (0.0, 1.0);
    }
    let room = if high > low { 0.05 * (high - low) } else { 0.5 * high.abs().max(1e-3) };
    (low - room, high + room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(version: u64) -> Metrics {
        let line = format!(
            r#"{{"version":{version},"step":0,"trajectories":1,"tokens":2,"model_tokens":3,"summed_tokens":4,"micro_batches":1,
            "loss":{},"mean_ratio":1.0,"clip_fraction":0.0,"entropy":0.5,"gradient_norm":1.0,
            "groups":{{"attention":{{"gradient":0.25,"update":0.1}},"norms":{{"gradient":0.5,"update":0.2}}}},"learning_rate":0.1,
            "batch":{{"reward":{{"count":2,"mean":0.5}},"success_by_depth":{{"0":{{"count":2,"mean":0.5}},"1":{{"count":1,"mean":1.0}}}},
            "success_by_difficulty":{{"tiny":{{"count":2,"mean":0.5}}}},"nodes":{{"count":2,"mean":1.5}},"depth":{{"count":2,"mean":0.5}}}}}}"#,
            1.0 / version as f64
        );
        Metrics::from_line(&line).unwrap()
    }

    #[test]
    fn every_curve_with_points_is_drawn() {
        let all: Vec<Metrics> = (1..=2500).map(metrics).collect();
        let plots = plots(&all);
        let files: Vec<_> = plots.iter().map(|plot| plot.file).collect();
        assert!(files.contains(&"success_by_depth") && files.contains(&"gradient_norm"), "{files:?}");
        assert!(!files.contains(&"kl"), "there is no reference");
        for plot in &plots {
            let svg = draw(plot).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains(plot.title) && svg.contains("polyline"), "{}", plot.file);
            assert!(svg.len() < 400_000, "{}: {} bytes", plot.file, svg.len());
        }
        let depth = plots.iter().find(|plot| plot.file == "success_by_depth").unwrap();
        let svg = draw(depth).unwrap();
        assert!(svg.contains("depth 0") && svg.contains("depth 1"), "curves are named");
        assert_eq!(svg, draw(depth).unwrap(), "the same bytes each time");
        let one = super::plots(&[metrics(1)]);
        assert!(draw(one.first().unwrap()).unwrap().contains("circle"), "a lone point shows");
    }
}
