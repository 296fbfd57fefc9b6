//! Every operation against plain candle operations in f64, value and gradient, and those against finite differences.

use super::tiles::{KeyValues, attend_rows};
use super::*;
use crate::trie::{Branch, Pick};
use candle_core::{D, DType, Device, Var};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

fn numbers_like(rng: &mut ChaCha8Rng, count: usize) -> Vec<f64> {
    (0..count).map(|_| f64::from((rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0)).collect()
}

fn scalar(t: &Tensor) -> f64 {
    t.to_dtype(DType::F64).unwrap().to_scalar().unwrap()
}

fn flat(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest difference, relative to the largest number of `b`.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (flat(a), flat(b));
    let scale = b.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / scale
}

type Op<'a> = &'a dyn Fn(&[Tensor]) -> Tensor;

/// `own` in f32 and `plain` in f64 on the same random inputs: equal values and gradients of a random linear functional; the
/// plain gradient agrees with central differences.
fn check(shapes: &[&[usize]], own: Op<'_>, plain: Op<'_>) {
    let mut rng = ChaCha8Rng::seed_from_u64(shapes.iter().flat_map(|s| s.iter()).fold(7, |h, n| h * 31 + *n as u64));
    let inputs: Vec<Vec<f64>> = shapes.iter().map(|s| numbers_like(&mut rng, s.iter().product())).collect();
    let tensor = |x: &[f64], shape: &[usize], dtype| {
        Tensor::from_slice(x, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    };
    let vars = |dtype| -> Vec<Var> {
        inputs.iter().zip(shapes).map(|(x, s)| Var::from_tensor(&tensor(x, s, dtype)).unwrap()).collect()
    };
    let tensors = |vars: &[Var]| -> Vec<Tensor> { vars.iter().map(|v| v.as_tensor().clone()).collect() };
    let (own_vars, plain_vars) = (vars(DType::F32), vars(DType::F64));
    let (got, want) = (own(&tensors(&own_vars)), plain(&tensors(&plain_vars)));
    assert!(distance(&got, &want) < 2e-6, "value: {:e}", distance(&got, &want));

    let coefficients = numbers_like(&mut rng, want.elem_count());
    let loss = |out: &Tensor| {
        let c = tensor(&coefficients, out.dims(), out.dtype());
        (out * c).unwrap().sum_all().unwrap()
    };
    let (own_grads, plain_grads) = (loss(&got).backward().unwrap(), loss(&want).backward().unwrap());
    for (index, (a, b)) in own_vars.iter().zip(&plain_vars).enumerate() {
        let got = own_grads.get(a.as_tensor()).unwrap_or_else(|| panic!("input {index} gets no gradient"));
        let want = plain_grads.get(b.as_tensor()).unwrap();
        assert!(distance(got, want) < 5e-6, "gradient {index}: {:e}", distance(got, want));
        let mut moved = inputs.clone();
        let exact = flat(want);
        for at in [0, exact.len() / 2, exact.len() - 1] {
            let step = 1e-5;
            let mut at_offset = |offset: f64| {
                moved[index][at] = inputs[index][at] + offset;
                let all: Vec<Tensor> = moved.iter().zip(shapes).map(|(x, s)| tensor(x, s, DType::F64)).collect();
                moved[index][at] = inputs[index][at];
                scalar(&loss(&plain(&all)))
            };
            let slope = (at_offset(step) - at_offset(-step)) / (2.0 * step);
            assert!((slope - exact[at]).abs() < 1e-6 * (1.0 + exact[at].abs()), "{slope} {}", exact[at]);
        }
    }
}

fn plain_norm(x: &Tensor, w: &Tensor, eps: f64) -> Tensor {
    let width = w.elem_count();
    let shape = x.dims().to_vec();
    let x = x.reshape(((), width)).unwrap();
    let mean = (x.sqr().unwrap().sum_keepdim(D::Minus1).unwrap() / width as f64).unwrap();
    let x = x.broadcast_div(&(mean + eps).unwrap().sqrt().unwrap()).unwrap();
    x.broadcast_mul(w).unwrap().reshape(shape).unwrap()
}

fn plain_log_softmax(logits: &Tensor) -> Tensor {
    let max = logits.max_keepdim(D::Minus1).unwrap().detach();
    let centred = logits.broadcast_sub(&max).unwrap();
    let sum = centred.exp().unwrap().sum_keepdim(D::Minus1).unwrap().log().unwrap();
    centred.broadcast_sub(&sum).unwrap()
}

#[test]
fn rms_norm_matches() {
    check(&[&[300, 40], &[40]], &|t| rms_norm(&t[0], &t[1], 1e-6).unwrap(), &|t| plain_norm(&t[0], &t[1], 1e-6));
    check(&[&[5, 3 * 6], &[6]], &|t| rms_norm(&t[0], &t[1], 1e-5).unwrap(), &|t| plain_norm(&t[0], &t[1], 1e-5));
}

fn plain_rope(x: &Tensor, positions: &[usize], dim: usize) -> Tensor {
    let (rows, width) = x.dims2().unwrap();
    let angle = |f: fn(f64) -> f64| {
        let frequency = |i: usize| 10_000f64.powf(-2.0 * i as f64 / dim as f64);
        let all: Vec<f64> =
            positions.iter().flat_map(|p| (0..dim / 2).map(move |i| f(*p as f64 * frequency(i)))).collect();
        Tensor::from_vec(all, (rows, 1, dim / 2), &Device::Cpu).unwrap()
    };
    let x = x.reshape((rows, width / dim, dim)).unwrap();
    let (x1, x2) = (x.narrow(2, 0, dim / 2).unwrap(), x.narrow(2, dim / 2, dim / 2).unwrap());
    let (cos, sin) = (angle(f64::cos), angle(f64::sin));
    let by = |x: &Tensor, a: &Tensor| x.broadcast_mul(a).unwrap();
    let rotated = [by(&x1, &cos) - by(&x2, &sin), by(&x2, &cos) + by(&x1, &sin)].map(candle_core::Result::unwrap);
    Tensor::cat(&rotated, 2).unwrap().reshape((rows, width)).unwrap()
}

#[test]
fn rope_matches() {
    let (dim, heads) = (10, 3);
    let rope = |positions: &[usize]| Rope {
        table: RopeTable::new(&crate::RopeScaling::None.frequencies(dim, 10_000.0), 256).into(),
        positions: positions.to_vec().into(),
    };
    let near = [0usize, 1, 2, 0, 1, 7, 3];
    check(&[&[7, heads * dim]], &|t| rope(&near).apply(&t[0]).unwrap(), &|t| plain_rope(&t[0], &near, dim));
    // Angles are rounded to f32 as transformers does: far out that shows, and no more than that.
    let far = [0usize, 5, 50, 100, 200, 250, 255];
    let x = Tensor::ones((7, heads * dim), DType::F32, &Device::Cpu).unwrap();
    let plain = plain_rope(&x.to_dtype(DType::F64).unwrap(), &far, dim);
    assert!(distance(&rope(&far).apply(&x).unwrap(), &plain) < 2e-5);
    assert!(rope(&[256]).apply(&x.narrow(0, 0, 1).unwrap()).is_err(), "beyond the table");
}

#[test]
fn swiglu_matches() {
    check(&[&[17, 23], &[17, 23]], &|t| swiglu(&t[0], &t[1]).unwrap(), &|t| (t[0].silu().unwrap() * &t[1]).unwrap());
}

/// A linear layer with its gradients, as one operation of candle's.
struct Linear;

impl candle_core::CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
    ) -> Result<(CpuStorage, candle_core::Shape)> {
        let tensor = |numbers: &CpuStorage, layout: &Layout| {
            Tensor::from_slice(super::numbers(numbers, layout, "linear")?, layout.shape(), &Device::Cpu)
        };
        let product = linear(&tensor(x, lx)?, &Matrix::Rows(tensor(w, lw)?))?;
        let shape = product.shape().clone();
        Ok((CpuStorage::F32(product.flatten_all()?.to_vec1()?), shape))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(linear_input_gradient(w, grad)?), Some(linear_weight_gradient(x, grad)?)))
    }
}

#[test]
fn linear_matches() {
    for rows in [1, 3, 70, 700] {
        let plain = |t: &[Tensor]| t[0].matmul(&t[1].t().unwrap()).unwrap();
        check(&[&[rows, 24], &[10, 24]], &|t| t[0].apply_op2(&t[1], Linear).unwrap(), &plain);
    }
    let [x, w, residual] =
        [(5, 24), (10, 24), (5, 10)].map(|shape| Tensor::rand(-1f32, 1.0, shape, &Device::Cpu).unwrap());
    let (matrix, want) = (Matrix::Rows(w.clone()), (x.matmul(&w.t().unwrap()).unwrap() + &residual).unwrap());
    assert!(distance(&linear_add(&x, &matrix, &residual).unwrap(), &want) < 2e-6);
    assert!(linear_add(&x, &matrix, &x).is_err());
    assert!(linear(&residual, &matrix).is_err(), "rows of another width");
    let [again, other] = products(&x, [&matrix, &Matrix::Rows(x.clone())]).unwrap();
    assert_eq!((again.dims(), other.dims()), (&[5, 10][..], &[5, 5][..]));
}

#[test]
fn gather_matches() {
    let rows = [3usize, 0, 3, 5, 1];
    let index = Tensor::new(&[3u32, 0, 3, 5, 1], &Device::Cpu).unwrap();
    check(&[&[6, 9]], &|t| gather_rows(&t[0], &rows).unwrap(), &|t| t[0].index_select(&index, 0).unwrap());
    assert!(gather_rows(&Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap(), &[2]).is_err());
}

#[test]
fn token_logprob_matches_across_chunks() {
    let (n, vocabulary) = (300, 37);
    let ids: Vec<u32> = (0..n as u32).map(|i| (i * 7) % vocabulary as u32).collect();
    let index = Tensor::from_slice(&ids, (n, 1), &Device::Cpu).unwrap();
    let plain = |t: &[Tensor]| {
        let all = plain_log_softmax(&(t[0].matmul(&t[1].t().unwrap()).unwrap() * 3.0).unwrap());
        let entropy = (all.exp().unwrap() * &all).unwrap().sum(D::Minus1).unwrap().neg().unwrap();
        Tensor::stack(&[all.gather(&index, 1).unwrap().squeeze(1).unwrap(), entropy], 0).unwrap()
    };
    let picks: Vec<Pick> = ids.iter().enumerate().map(|(place, id)| Pick { place, id: *id }).collect();
    let own = |t: &[Tensor]| token_logprob(&(&t[0] * 3.0).unwrap(), &t[1], &picks).unwrap();
    check(&[&[n, 12], &[vocabulary, 12]], &own, &plain);
}

/// Several tokens after one row, and rows with none: their gradients add up.
#[test]
fn token_logprob_matches_with_shared_rows() {
    let (rows, vocabulary) = (300, 21);
    let picks: Vec<Pick> = (0..rows)
        .flat_map(|place| (0..place % 4).map(move |k| Pick { place, id: ((place * 5 + k * 3) % vocabulary) as u32 }))
        .collect();
    let mut picks = picks;
    picks.sort_unstable();
    let n = picks.len();
    let places = Tensor::from_vec(picks.iter().map(|p| p.place as u32).collect::<Vec<_>>(), n, &Device::Cpu).unwrap();
    let ids = Tensor::from_vec(picks.iter().map(|p| p.id).collect::<Vec<_>>(), (n, 1), &Device::Cpu).unwrap();
    let plain = |t: &[Tensor]| {
        let all = plain_log_softmax(&(t[0].matmul(&t[1].t().unwrap()).unwrap() * 3.0).unwrap());
        let all = all.index_select(&places, 0).unwrap();
        let entropy = (all.exp().unwrap() * &all).unwrap().sum(D::Minus1).unwrap().neg().unwrap();
        Tensor::stack(&[all.gather(&ids, 1).unwrap().squeeze(1).unwrap(), entropy], 0).unwrap()
    };
    let own = |t: &[Tensor]| token_logprob(&(&t[0] * 3.0).unwrap(), &t[1], &picks).unwrap();
    check(&[&[rows, 12], &[vocabulary, 12]], &own, &plain);
}

/// Branches of sequences that lie end to end.
fn apart(lengths: &[usize]) -> Vec<Branch> {
    let mut row = 0;
    let branch = |len: &usize| {
        row += len;
        Branch { row: row - len, start: 0, len: *len }
    };
    lengths.iter().map(branch).collect()
}

#[test]
fn attention_matches() {
    let forest = [(0, 0, 20), (20, 20, 3), (23, 17, 30), (53, 40, 1), (54, 5, 18), (72, 0, 6), (78, 2, 9)];
    let forest = forest.map(|(row, start, len)| Branch { row, start, len });
    for branches in [apart(&[1, 37, 5, 16, 19]), forest.to_vec()] {
        let rows: usize = branches.iter().map(|branch| branch.len).sum();
        for (heads, kv_heads, dim) in [(4, 2, 10), (3, 3, 16), (6, 1, 40)] {
            let shape = Heads { heads, kv_heads, dim };
            check(
                &[&[rows, heads * dim], &[rows, kv_heads * dim], &[rows, kv_heads * dim]],
                &|t| path_attention(&t[0], &t[1], &t[2], shape, &branches).unwrap(),
                &|t| plain_attention(t, shape, &branches),
            );
        }
    }
}

/// Attention over all rows, with a mask that leaves each row those on the path to it.
fn plain_attention(t: &[Tensor], shape: Heads, branches: &[Branch]) -> Tensor {
    let (mut path, mut mask) = (Vec::new(), Vec::new());
    let rows: usize = branches.iter().map(|branch| branch.len).sum();
    for branch in branches {
        path.truncate(branch.start);
        for row in branch.row..branch.row + branch.len {
            path.push(row);
            mask.extend((0..rows).map(|other| if path.contains(&other) { 0.0 } else { -1e30 }));
        }
    }
    let mask = Tensor::from_vec(mask, (rows, rows), &Device::Cpu).unwrap();
    let mut columns = Vec::new();
    for head in 0..shape.heads {
        let part = |t: &Tensor, head: usize| t.narrow(1, head * shape.dim, shape.dim).unwrap().contiguous().unwrap();
        let (q, k, v) = (part(&t[0], head), part(&t[1], head / shape.group()), part(&t[2], head / shape.group()));
        let scores = (q.matmul(&k.t().unwrap()).unwrap() / (shape.dim as f64).sqrt()).unwrap();
        let weights = plain_log_softmax(&(scores + &mask).unwrap()).exp().unwrap();
        columns.push(weights.matmul(&v).unwrap());
    }
    Tensor::cat(&columns, 1).unwrap()
}

/// The bits of a query's result do not depend on the tile it is computed in, and future keys do not reach it.
#[test]
fn attention_rows_are_independent() {
    let shape = Heads { heads: 2, kv_heads: 1, dim: 24 };
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut row = || -> Vec<f32> { numbers_like(&mut rng, shape.dim).iter().map(|x| *x as f32).collect() };
    let mut kv = KeyValues::default();
    let queries: Vec<f32> = (0..50).flat_map(|_| row()).collect();
    let lens: Vec<usize> = (1..=50).collect();
    (0..50).for_each(|_| kv.push(&row(), &row()));
    let mut together = vec![0.0; queries.len()];
    attend_rows(&kv, shape.dim, shape.scale(), &queries, &lens, &mut together);
    kv.push(&[f32::NAN; 24], &[f32::INFINITY; 24]);
    for at in 0..50 {
        let mut alone = vec![0.0; shape.dim];
        attend_rows(&kv, shape.dim, shape.scale(), &queries[at * shape.dim..][..shape.dim], &lens[at..=at], &mut alone);
        assert_eq!(alone, together[at * shape.dim..][..shape.dim], "query {at}");
        let mut cut = kv.clone();
        cut.truncate(at + 1);
        cut.truncate(at + 1);
        attend_rows(
            &cut,
            shape.dim,
            shape.scale(),
            &queries[at * shape.dim..][..shape.dim],
            &lens[at..=at],
            &mut alone,
        );
        assert_eq!(alone, together[at * shape.dim..][..shape.dim], "query {at} on a copied prefix");
    }
}
