//! A decoder's weights as the sampler uses them: matrices in panels, once and in place of the tensors.

use crate::forward::{Network, Parts};
use crate::lora::{Adapted, AdapterConfig};
use crate::ops::{self, Panels};
use crate::{Config, Decoder, PolicyError};
use candle_core::{Device, Tensor, Var};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a [`Decoder`] is made of, with its matrices laid out for products of few rows. Takes as much memory as the decoder did.
pub(crate) struct LaidOut {
    config: Config,
    /// The tensors that are no matrices, by name: trained and frozen.
    vars: BTreeMap<String, Var>,
    frozen: BTreeMap<String, Tensor>,
    panels: BTreeMap<String, Arc<Panels>>,
    /// Which of `panels` are trained.
    trained: BTreeSet<String>,
    adapter: Option<(AdapterConfig, Adapted)>,
    version: u64,
    network: Network,
}

impl LaidOut {
    /// Takes the decoder's tensors one by one, so that no more than one of them is there twice.
    pub(crate) fn new(decoder: Decoder) -> Result<Self, PolicyError> {
        let (config, mut vars, mut frozen, adapter, version) = decoder.take_apart();
        let matrix = |tensor: &Tensor| tensor.dims().len() == 2;
        let trained: BTreeSet<String> =
            vars.iter().filter(|(_, var)| matrix(var)).map(|(name, _)| name.clone()).collect();
        let others: Vec<String> =
            frozen.iter().filter(|(_, tensor)| matrix(tensor)).map(|(name, _)| name.clone()).collect();
        let mut panels = BTreeMap::new();
        for name in trained.iter().chain(&others) {
            let var = vars.remove(name).map(|var| var.as_detached_tensor());
            if let Some(tensor) = var.or_else(|| frozen.remove(name)) {
                let (outputs, inputs) = tensor.dims2()?;
                let laid = ops::with_numbers([&tensor], "lay-out", |[rows]| Ok(Panels::new(rows, outputs, inputs)))?;
                panels.insert(name.clone(), Arc::new(laid));
            }
        }
        let network = {
            let adapter = adapter.as_ref().map(|(adapter, _)| adapter);
            Network::new(&config, Parts { vars: &vars, frozen: &frozen, panels: &panels, adapter })?
        };
        Ok(Self { config, vars, frozen, panels, trained, adapter, version, network })
    }

    /// The decoder again, with the same bits.
    pub(crate) fn into_decoder(self) -> Result<Decoder, PolicyError> {
        let Self { config, mut vars, mut frozen, panels, trained, adapter, version, network } = self;
        drop(network);
        for (name, panels) in panels {
            let tensor = Tensor::from_vec(panels.rows(), (panels.outputs(), panels.inputs()), &Device::Cpu)?;
            if trained.contains(&name) {
                vars.insert(name, Var::from_tensor(&tensor)?);
            } else {
                frozen.insert(name, tensor);
            }
        }
        Decoder::assemble(config, vars, frozen, adapter, version)
    }

    /// The weights as the passes use them.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }
}
