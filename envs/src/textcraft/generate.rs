//! Generated worlds of the authors' shape: five domains, tiers, meaningless names, one recipe per item.

use serde::{Deserialize, Serialize};

use super::recipes::{Draft, RecipeDb};
use crate::EnvError;
use crate::rng::Rng;

/// The domains: metal, crystal, organic, arcane, tech.
pub const DOMAINS: &str = "mcoat";

/// Items that need several domains: tier, suffix, domains.
const CROSS_DOMAIN: [(u32, &str, &str); 12] = [
    (10, "mc", "mc"),
    (10, "ot", "ot"),
    (10, "am", "am"),
    (10, "ct", "ct"),
    (11, "mct", "mct"),
    (11, "oam", "oam"),
    (11, "act", "act"),
    (11, "tca", "tca"),
    (12, "mcat", "mcat"),
    (12, "oacm", "oacm"),
    (12, "tcoa", "tcoa"),
    (12, "all", "mcoat"),
];

/// The most ingredients that a recipe has.
const MAX_INGREDIENTS: u64 = 6;

/// How items are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Naming {
    /// As in the authors' world: the same names in every world.
    Official,
    /// Names of the authors' shapes drawn afresh, so that a name says nothing about its recipe.
    Drawn,
}

/// Everything that decides a generated world. Equal settings give equal worlds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenConfig {
    /// The version of the generator; this program knows 1.
    pub version: u32,
    /// The seed.
    pub seed: u64,
    /// The domains that get recipes, as letters of [`DOMAINS`]; base items exist in all five. A domain's recipes do not
    /// depend on which others are made; items across domains need all five.
    pub domains: String,
    /// The number of tiers above the base items, 1 to 12.
    pub tiers: u32,
    /// Items per domain and tier; tier `t` has `max(1, items_per_tier - t / 3)`.
    pub items_per_tier: u32,
    /// Base items per domain, 1 to 10.
    pub base_per_domain: u32,
    /// How items are named.
    pub naming: Naming,
    /// Result counts (lowest, highest) by tier from 1; the last holds for all deeper tiers.
    pub yields: Vec<(u64, u64)>,
    /// Amounts per ingredient (lowest, highest) by tier from 1; the last holds for all deeper tiers.
    pub amounts: Vec<(u64, u64)>,
    /// Numbers of ingredients by tier from 1, to which up to `min(2, tier / 3)` are added.
    pub ingredients: Vec<u64>,
}

impl GenConfig {
    /// The shape of the authors' world: 50 base items and, with all tiers, 1,402 craftable ones.
    pub fn official(seed: u64) -> Self {
        Self {
            version: 1,
            seed,
            domains: DOMAINS.to_owned(),
            tiers: 12,
            items_per_tier: 25,
            base_per_domain: 10,
            naming: Naming::Official,
            yields: vec![(2, 4), (2, 3), (1, 2), (1, 2), (1, 2), (1, 1)],
            amounts: vec![(1, 2), (1, 2), (1, 2), (1, 2), (1, 1)],
            ingredients: vec![1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4],
        }
    }

    /// The world of one `tiny` task: 12 craftable items of one domain in tiers 1 and 2, names drawn afresh.
    pub fn tiny(seed: u64) -> Self {
        Self {
            domains: "m".to_owned(),
            tiers: 2,
            items_per_tier: 6,
            base_per_domain: 6,
            naming: Naming::Drawn,
            ..Self::official(seed)
        }
    }

    /// One domain of the authors' world, or all five where items across domains occur, no deeper than `tiers`.
    pub fn fresh(seed: u64, tiers: u32) -> Self {
        let mut config = Self { tiers, ..Self::official(seed) };
        if tiers < 10 {
            let domain =
                Rng::new("textcraft fresh domain", &[&seed.to_le_bytes()]).below(DOMAINS.len() as u64) as usize;
            config.domains = DOMAINS.chars().skip(domain).take(1).collect();
        }
        config
    }

    fn items_at(&self, tier: u32) -> u32 {
        self.items_per_tier.saturating_sub(tier / 3).max(1)
    }

    fn check(&self) -> Result<(), EnvError> {
        let refuse = |name, reason: &str| Err(EnvError::Setting { name, reason: reason.to_owned() });
        let ranges = |ranges: &[(u64, u64)]| {
            !ranges.is_empty() && ranges.iter().all(|&(low, high)| (1..=high).contains(&low) && high <= 1_000)
        };
        if self.version != 1 {
            return refuse(
                "world.version",
                "this program generates version 1 only; use the program that made the task",
            );
        }
        let distinct = self.domains.chars().enumerate().all(|(index, letter)| self.domains.find(letter) == Some(index));
        if self.domains.is_empty() || !distinct || !self.domains.chars().all(|letter| DOMAINS.contains(letter)) {
            return refuse("world.domains", "give each domain once, as letters of `mcoat`");
        }
        if !(1..=12).contains(&self.tiers) {
            return refuse("world.tiers", "must be 1 to 12");
        }
        if !(1..=100).contains(&self.items_per_tier) || !(1..=10).contains(&self.base_per_domain) {
            return refuse("world.items_per_tier", "1 to 100 items per tier and 1 to 10 base items per domain");
        }
        if self.naming == Naming::Drawn && self.items_per_tier * self.tiers > 200 {
            return refuse("world.naming", "drawn names are for at most 200 items per domain");
        }
        if !ranges(&self.yields) || !ranges(&self.amounts) {
            return refuse("world.yields", "yields and amounts are ranges (lowest, highest) within 1 to 1,000");
        }
        if self.ingredients.is_empty() || self.ingredients.contains(&0) {
            return refuse("world.ingredients", "every tier needs at least one ingredient");
        }
        Ok(())
    }
}

impl RecipeDb {
    /// Makes the world that `config` describes.
    ///
    /// # Errors
    /// [`EnvError::Setting`] for settings out of range.
    pub fn generate(config: &GenConfig) -> Result<Self, EnvError> {
        config.check()?;
        let drafts = Builder::new(config).build();
        Self::from_drafts(drafts).map_err(|error| EnvError::Setting { name: "world", reason: error.to_string() })
    }
}

/// The value for a tier, the last one standing for all deeper tiers.
fn at_tier<T: Copy>(values: &[T], tier: u32, fallback: T) -> T {
    values.get(tier as usize - 1).or(values.last()).copied().unwrap_or(fallback)
}

struct Builder<'a> {
    config: &'a GenConfig,
    /// The letter that names use for each letter of [`DOMAINS`].
    letters: Vec<char>,
    /// Names by domain and tier.
    names: Vec<Vec<Vec<String>>>,
    drafts: Vec<Draft>,
}

impl<'a> Builder<'a> {
    fn new(config: &'a GenConfig) -> Self {
        let mut letters: Vec<char> = DOMAINS.chars().collect();
        if config.naming == Naming::Drawn {
            Rng::new("textcraft letters", &[&config.seed.to_le_bytes()]).shuffle(&mut letters);
        }
        let names = vec![Vec::new(); letters.len()];
        Self { config, letters, names, drafts: Vec::new() }
    }

    fn build(mut self) -> Vec<Draft> {
        for (domain, letter) in DOMAINS.chars().enumerate() {
            // Each domain has its own generator, so that leaving others out changes nothing in it.
            let mut rng = Rng::new("textcraft domain", &[&self.config.seed.to_le_bytes(), &[letter as u8]]);
            self.base_items(domain, &mut rng);
            if self.config.domains.contains(letter) {
                self.name_items(domain, &mut rng);
                for tier in 1..=self.config.tiers {
                    self.tier_recipes(domain, tier, &mut rng);
                }
            }
        }
        if DOMAINS.chars().all(|letter| self.config.domains.contains(letter)) {
            self.cross_domain();
        }
        self.drafts
    }

    fn base_items(&mut self, domain: usize, rng: &mut Rng) {
        let letter = self.letters[domain];
        let mut indices: Vec<u32> = (0..10).collect();
        if self.config.naming == Naming::Drawn {
            rng.shuffle(&mut indices);
        }
        indices.truncate(self.config.base_per_domain as usize);
        let names: Vec<String> = indices.iter().map(|&index| base_name(letter, index)).collect();
        let drafts = names.iter().map(|name| Draft { name: name.clone(), tier: 0, recipes: Vec::new() });
        self.drafts.extend(drafts);
        self.names[domain].push(names);
    }

    fn name_items(&mut self, domain: usize, rng: &mut Rng) {
        let letter = self.letters[domain];
        let mut pool = if self.config.naming == Naming::Drawn { NamePool::new(letter) } else { NamePool::default() };
        for tier in 1..=self.config.tiers {
            let names = (0..self.config.items_at(tier)).map(|ordinal| match self.config.naming {
                Naming::Official => item_name(letter, tier, ordinal),
                Naming::Drawn => pool.draw(rng),
            });
            let names = names.collect();
            self.names[domain].push(names);
        }
    }

    fn tier_recipes(&mut self, domain: usize, tier: u32, rng: &mut Rng) {
        for ordinal in 0..self.names[domain][tier as usize].len() {
            let mut parts = self.candidates(domain, tier, rng);
            let wanted = at_tier(&self.config.ingredients, tier, 1) + rng.range(0, u64::from((tier / 3).min(2)));
            let mut ingredients = Vec::new();
            for _ in 0..wanted.min(MAX_INGREDIENTS) {
                let weights: Vec<u64> = parts.iter().map(|part| part.1).collect();
                let Some(chosen) = rng.weighted(&weights) else { break };
                ingredients.push((parts.swap_remove(chosen).0, self.amount(tier, rng)));
            }
            let (low, high) = at_tier(&self.config.yields, tier, (1, 1));
            let name = self.names[domain][tier as usize][ordinal].clone();
            self.drafts.push(Draft { name, tier, recipes: vec![(rng.range(low, high), ingredients)] });
        }
    }

    fn amount(&self, tier: u32, rng: &mut Rng) -> u64 {
        let (low, high) = at_tier(&self.config.amounts, tier, (1, 1));
        rng.range(low, high)
    }

    /// The two tiers below and, from tier 4 on, one item of the two tiers below these; weights 60 / (distance + 1).
    fn candidates(&self, domain: usize, tier: u32, rng: &mut Rng) -> Vec<(String, u64)> {
        let mut parts = Vec::new();
        for below in tier.saturating_sub(2)..tier {
            let weight = 60 / u64::from(tier - below + 1);
            parts.extend(self.names[domain][below as usize].iter().map(|name| (name.clone(), weight)));
        }
        if tier >= 4 {
            let deep: Vec<(u32, &String)> = (tier - 4..=tier - 3)
                .flat_map(|below| self.names[domain][below as usize].iter().map(move |name| (below, name)))
                .collect();
            if let Some(&(below, name)) = rng.pick(&deep) {
                parts.push((name.clone(), 60 / u64::from(tier - below + 1)));
            }
        }
        parts
    }

    fn cross_domain(&mut self) {
        let mut rng = Rng::new("textcraft across", &[&self.config.seed.to_le_bytes()]);
        for (tier, suffix, domains) in CROSS_DOMAIN {
            if tier > self.config.tiers {
                continue;
            }
            let mut ingredients = Vec::new();
            for domain in domains.chars().filter_map(|letter| DOMAINS.find(letter)) {
                if let Some(name) = rng.pick(&self.names[domain][tier as usize - 3]) {
                    ingredients.push((name.clone(), rng.range(1, 2)));
                }
            }
            let (low, high) = at_tier(&self.config.yields, tier, (1, 1));
            let recipes = vec![(rng.range(low, high), ingredients)];
            self.drafts.push(Draft { name: format!("x{tier}_{suffix}"), tier, recipes });
        }
    }
}

fn base_name(letter: char, index: u32) -> String {
    if matches!(letter, 'm' | 'c') { format!("{letter}{index}_ore") } else { format!("raw_{letter}{index}") }
}

/// The authors' names: ten prefixes, the tier once more from tier 6 on, the ordinal once the prefixes are used up.
fn item_name(letter: char, tier: u32, ordinal: u32) -> String {
    let mut name = format!("{letter}{}_i{tier}", ordinal % 10);
    if tier >= 6 {
        name.push_str(&format!("_{tier}"));
    }
    if ordinal >= 10 {
        name.push_str(&format!("_{ordinal}"));
    }
    name
}

/// Names of one domain that have not been given away.
#[derive(Default)]
struct NamePool {
    names: Vec<String>,
    weights: Vec<u64>,
}

impl NamePool {
    fn new(letter: char) -> Self {
        let mut pool = Self::default();
        for tier in 1..=12_u32 {
            // Names with and without the repeated tier come about equally often.
            let weight = if tier < 6 { 3 } else { 2 };
            for ordinal in 0..25 - tier / 3 {
                pool.names.push(item_name(letter, tier, ordinal));
                pool.weights.push(weight);
            }
        }
        pool
    }

    fn draw(&mut self, rng: &mut Rng) -> String {
        let Some(chosen) = rng.weighted(&self.weights) else { return String::new() };
        self.weights.swap_remove(chosen);
        self.names.swap_remove(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_world_has_the_authors_shape() {
        let db = RecipeDb::generate(&GenConfig::official(42)).unwrap();
        let mut sizes = [0; 13];
        for (_, item) in db.items() {
            sizes[item.tier as usize] += 1;
            let Some(recipe) = item.recipes.first() else { continue };
            let tier = item.tier;
            let yields = match tier {
                1 => 2..=4,
                2 => 2..=3,
                3..=5 => 1..=2,
                _ => 1..=1,
            };
            let amounts = if tier <= 4 || item.name.starts_with('x') { 1..=2 } else { 1..=1 };
            assert!(yields.contains(&recipe.result_count), "{item:?}");
            assert!(recipe.ingredients.len() <= 6 && recipe.ingredients.iter().all(|part| amounts.contains(&part.1)));
            assert!(item.true_depth >= 1 && item.true_depth <= tier, "{item:?}");
        }
        assert_eq!(sizes, [50, 125, 125, 120, 120, 120, 115, 115, 115, 110, 114, 114, 109]);
        for name in ["m0_ore", "raw_a3", "c3_i5_13", "o4_i6_6", "m6_i6_6_16", "x10_mc", "x12_all"] {
            assert!(db.find(name).is_some(), "{name}");
        }
        let all = db.recipe(db.find("x12_all").unwrap()).unwrap();
        assert_eq!(all.ingredients.len(), 5);
    }

    #[test]
    fn a_domain_alone_is_the_same_as_among_others() {
        let recipes = |config: &GenConfig| {
            let db = RecipeDb::generate(config).unwrap();
            let show = |(_, item): (_, &crate::textcraft::Item)| {
                let parts = item.recipes.iter().flat_map(|recipe| &recipe.ingredients);
                (item.name.to_string(), parts.map(|part| (db.name(part.0).to_owned(), part.1)).collect::<Vec<_>>())
            };
            db.items().map(show).filter(|item| item.0.starts_with("o")).collect::<Vec<_>>()
        };
        let alone = GenConfig { domains: "o".into(), ..GenConfig::official(7) };
        assert_eq!(recipes(&alone).len(), 278);
        assert_eq!(recipes(&alone), recipes(&GenConfig::official(7)));
    }

    #[test]
    fn tiny_worlds_have_twelve_craftable_items_and_new_names() {
        let names = |seed| {
            let db = RecipeDb::generate(&GenConfig::tiny(seed)).unwrap();
            let made = db.items().filter(|(_, item)| item.tier > 0).map(|(_, item)| item.name.to_string());
            made.collect::<std::collections::BTreeSet<_>>()
        };
        let worlds: Vec<_> = (0..200).map(names).collect();
        assert!(worlds.iter().all(|world| world.len() == 12));
        let repeated = worlds.iter().flatten().filter(|name| name.contains("_i7_7") || name.contains("_i12_12"));
        assert!(repeated.count() > 50);
        let letters: std::collections::BTreeSet<_> =
            worlds.iter().flatten().filter_map(|name| name.chars().next()).collect();
        assert_eq!(letters.into_iter().collect::<String>(), "acmot");
        let all: std::collections::BTreeSet<_> = worlds.iter().flatten().collect();
        assert!(all.len() > 900, "{}", all.len());
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let good = GenConfig::official(1);
        for bad in [
            GenConfig { version: 2, ..good.clone() },
            GenConfig { domains: "mm".into(), ..good.clone() },
            GenConfig { domains: "mz".into(), ..good.clone() },
            GenConfig { tiers: 13, ..good.clone() },
            GenConfig { items_per_tier: 0, ..good.clone() },
            GenConfig { naming: Naming::Drawn, ..good.clone() },
            GenConfig { yields: vec![(0, 1)], ..good.clone() },
            GenConfig { amounts: vec![], ..good.clone() },
            GenConfig { ingredients: vec![0], ..good.clone() },
        ] {
            assert!(matches!(RecipeDb::generate(&bad), Err(EnvError::Setting { .. })), "{bad:?}");
        }
    }
}
