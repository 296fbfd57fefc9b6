//! AdamW: clipping, decay, refusals, saved state, and independence from threads.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use rao_replay::optimizer::{AdamW, AdamWSettings, OptimizerError, Parameter, gradient_norm};

const SIZES: [(&str, [usize; 2]); 2] = [("a.weight", [97, 131]), ("b.weight", [3, 5])];

fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes: Vec<_> = SIZES.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect();
    shapes.push(("c.norm".to_owned(), vec![7]));
    shapes
}

/// Numbers without pattern, the same in every run.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        })
        .collect()
}

fn start() -> Vec<Vec<f32>> {
    shapes().iter().enumerate().map(|(i, (_, shape))| noise(i as u64 + 1, shape.iter().product())).collect()
}

fn advance(optimizer: &mut AdamW, values: &mut [Vec<f32>], steps: std::ops::Range<u64>) -> Vec<f64> {
    let names = shapes();
    steps
        .map(|step| {
            let gradients: Vec<Vec<f32>> =
                values.iter().enumerate().map(|(i, v)| noise(100 + step * 10 + i as u64, v.len())).collect();
            let mut parameters: Vec<Parameter<'_>> = names
                .iter()
                .zip(values.iter_mut())
                .zip(&gradients)
                .map(|(((name, _), values), gradient)| Parameter { name, values, gradient })
                .collect();
            optimizer.step(1e-2, &mut parameters).unwrap()
        })
        .collect()
}

fn bits(values: &[Vec<f32>]) -> Vec<u32> {
    values.iter().flatten().map(|v| v.to_bits()).collect()
}

#[test]
fn state_saved_and_loaded_continues_bit_for_bit_whatever_the_threads() {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let mut whole = (AdamW::new(AdamWSettings::default(), shapes()), start());
    let norms = pool(1).install(|| advance(&mut whole.0, &mut whole.1, 0..5));
    let mut split = (AdamW::new(AdamWSettings::default(), shapes()), start());
    pool(2).install(|| advance(&mut split.0, &mut split.1, 0..3));
    let saved = split.0.to_bytes().unwrap();
    let mut loaded = AdamW::from_bytes(AdamWSettings::default(), shapes(), &saved).unwrap();
    assert_eq!(loaded.to_bytes().unwrap(), saved);
    let rest = pool(3).install(|| advance(&mut loaded, &mut split.1, 3..5));
    assert_eq!(bits(&whole.1), bits(&split.1));
    assert_eq!(whole.0, loaded);
    assert_eq!(norms[3..], rest);
}

#[test]
fn a_long_gradient_is_scaled_to_the_clip_norm() {
    // With beta2 = 0 and beta1 = 0 the step is lr * g / (|g| + eps): a large eps shows the scale.
    let settings =
        AdamWSettings { beta1: 0.0, beta2: 0.0, eps: 1e3, weight_decay: 0.0, clip_norm: 0.5, decay_vectors: true };
    let mut optimizer = AdamW::new(settings, [("p".to_owned(), vec![2])]);
    let mut values = [0.0, 0.0];
    let norm = optimizer.step(1.0, &mut [Parameter { name: "p", values: &mut values, gradient: &[3.0, 4.0] }]).unwrap();
    assert_eq!(norm, 5.0);
    assert!((values[0] + 0.3e-3).abs() < 1e-6 && (values[1] + 0.4e-3).abs() < 1e-6, "{values:?}");
}

#[test]
fn vectors_do_not_decay_unless_asked() {
    for (decay_vectors, expected) in [(false, 1.0), (true, 0.9)] {
        let settings = AdamWSettings { weight_decay: 0.1, decay_vectors, ..AdamWSettings::default() };
        let mut optimizer = AdamW::new(settings, [("m".to_owned(), vec![1, 1]), ("v".to_owned(), vec![1])]);
        let (mut matrix, mut vector) = ([1.0], [1.0]);
        let mut parameters = [
            Parameter { name: "m", values: &mut matrix, gradient: &[0.0] },
            Parameter { name: "v", values: &mut vector, gradient: &[0.0] },
        ];
        optimizer.step(1.0, &mut parameters).unwrap();
        assert_eq!((matrix[0], vector[0]), (0.9, expected));
    }
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    let mut optimizer = AdamW::new(AdamWSettings::default(), [("p".to_owned(), vec![2])]);
    let mut values = [1.0, 1.0];
    let bad = [Parameter { name: "p", values: &mut values, gradient: &[0.0, f32::NAN] }];
    let error = optimizer.step(1.0, &mut { bad }).unwrap_err();
    assert!(matches!(&error, OptimizerError::NotFinite { name, index: 1 } if name == "p"), "{error}");
    let error = optimizer.step(1.0, &mut [Parameter { name: "q", values: &mut values, gradient: &[0.0, 0.0] }]);
    assert!(error.unwrap_err().to_string().contains("`q`"));
    for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
        let bad = [Parameter { name: "p", values: &mut values, gradient: &[infinite, 0.0] }];
        let error = optimizer.step(1.0, &mut { bad }).unwrap_err();
        assert!(matches!(&error, OptimizerError::NotFinite { name, index: 0 } if name == "p"), "{error}");
    }
    assert_eq!((values, optimizer.step_count()), ([1.0, 1.0], 0));
    let other = AdamW::new(AdamWSettings::default(), [("p".to_owned(), vec![3])]).to_bytes().unwrap();
    let error = AdamW::from_bytes(AdamWSettings::default(), [("p".to_owned(), vec![2])], &other).unwrap_err();
    assert!(matches!(error, OptimizerError::State { .. }), "{error}");
    assert!(AdamW::from_bytes(AdamWSettings::default(), [("p".to_owned(), vec![2])], &other[..20]).is_err());
}

#[test]
fn the_norm_is_that_of_all_gradients_together() {
    let many = vec![0.5; 4 * 4096 + 4];
    let norm = gradient_norm([("a", [3.0_f32].as_slice()), ("b", &many)]).unwrap();
    assert_eq!(norm, (9.0 + 0.25 * many.len() as f64).sqrt());
}

/// The module's formulas over many steps in f64: moments, bias corrections that fade, decay of matrices only, and a clip that
/// some gradients exceed and others do not.
#[test]
fn many_steps_follow_the_formulas() {
    let settings =
        AdamWSettings { beta1: 0.8, beta2: 0.9, eps: 1e-3, weight_decay: 0.1, clip_norm: 1.0, decay_vectors: false };
    let AdamWSettings { beta1, beta2, eps, weight_decay, clip_norm, .. } = settings;
    let sizes = [("m.weight", vec![4, 6], 0.1), ("v.norm", vec![6], 0.0)];
    let mut optimizer = AdamW::new(settings, sizes.iter().map(|(name, shape, _)| ((*name).to_owned(), shape.clone())));
    let mut values: Vec<Vec<f32>> = (0..2).map(|i| noise(i + 1, sizes[i as usize].1.iter().product())).collect();
    let mut wanted: Vec<Vec<f64>> = values.iter().map(|v| v.iter().map(|x| f64::from(*x)).collect()).collect();
    let mut moments: Vec<Vec<(f64, f64)>> = values.iter().map(|v| vec![(0.0, 0.0); v.len()]).collect();
    let (mut clipped, steps, lr) = (0, 20, 0.05);
    assert!(weight_decay == sizes[0].2);
    for t in 1..=steps {
        // Short gradients now and then.
        let size = if t % 3 == 0 { 0.1 } else { 3.0 };
        let gradients: Vec<Vec<f32>> = (0..2)
            .map(|i| noise(100 + t * 10 + i, values[i as usize].len()).iter().map(|g| g * size).collect())
            .collect();
        let norm = gradients.iter().flatten().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let s = if norm > clip_norm { clip_norm / norm } else { 1.0 };
        clipped += u64::from(norm > clip_norm);
        for (i, (_, _, decay)) in sizes.iter().enumerate() {
            for ((p, g), (m, v)) in wanted[i].iter_mut().zip(&gradients[i]).zip(&mut moments[i]) {
                let g = s * f64::from(*g);
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let (m, v) = (*m / (1.0 - beta1.powi(t as i32)), *v / (1.0 - beta2.powi(t as i32)));
                *p -= lr * decay * *p + lr * m / (v.sqrt() + eps);
            }
        }
        let mut parameters: Vec<Parameter<'_>> = sizes
            .iter()
            .zip(values.iter_mut())
            .zip(&gradients)
            .map(|(((name, _, _), values), gradient)| Parameter { name, values, gradient })
            .collect();
        let told = optimizer.step(lr, &mut parameters).unwrap();
        assert!((told - norm).abs() < 1e-6);
        for (got, wanted) in values.iter().flatten().zip(wanted.iter().flatten()) {
            assert!((f64::from(*got) - wanted).abs() < 1e-5, "step {t}: {got} for {wanted}");
        }
    }
    assert!(clipped > 0 && clipped < steps, "{clipped} of {steps} clipped");
}
