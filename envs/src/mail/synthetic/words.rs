//! What invented people are called and write about. None of the fillers holds a number, so that facts stand out.

use crate::rng::Rng;

pub(super) const DOMAIN: &str = "tarnwick.example";

pub(super) const COMPANY: [(&str, &str); 1] = [("Tarnwick Works", DOMAIN)];

pub(super) const PARTNERS: [(&str, &str); 6] = [
    ("Ollery & Voss", "olleryvoss.example"),
    ("Brindle Supply", "brindle.example"),
    ("Quillon Freight", "quillon.example"),
    ("Marrowby Stone", "marrowby.example"),
    ("Fenhallow Timber", "fenhallow.example"),
    ("Istrel Instruments", "istrel.example"),
];

pub(super) const FIRST_NAMES: [&str; 20] = [
    "Tamsin", "Orrin", "Maelle", "Corwin", "Isolde", "Bram", "Sunniva", "Dario", "Fenna", "Lucan", "Mirel", "Odette",
    "Pascoe", "Rhoswen", "Tiernan", "Vesna", "Wilmot", "Yseult", "Anselm", "Junia",
];

pub(super) const LAST_NAMES: [&str; 24] = [
    "Aldermoor",
    "Brackwell",
    "Carrowen",
    "Dunmarrow",
    "Everlight",
    "Farrowdale",
    "Glenthorn",
    "Hollowby",
    "Inchmere",
    "Jesswick",
    "Kestering",
    "Larkenfold",
    "Morwenna",
    "Netherby",
    "Ockwell",
    "Penhallock",
    "Quarrendon",
    "Rushmere",
    "Silverton",
    "Thistlewood",
    "Underhay",
    "Vexley",
    "Wraxham",
    "Yarrowick",
];

const COLOURS: [&str; 12] = [
    "Amber", "Cobalt", "Crimson", "Ivory", "Russet", "Saffron", "Silver", "Umber", "Verdant", "Violet", "Indigo",
    "Ochre",
];

const BEASTS: [&str; 12] =
    ["Heron", "Badger", "Curlew", "Otter", "Lynx", "Marten", "Osprey", "Plover", "Stoat", "Tern", "Vole", "Wren"];

/// How many projects can have a name of their own.
pub(super) fn project_names() -> u32 {
    (COLOURS.len() * BEASTS.len()) as u32
}

/// The name of a project, such as `Amber Heron`; different numbers have different names.
pub(super) fn project_name(seed: u64, number: u32) -> String {
    let mut names: Vec<String> =
        COLOURS.iter().flat_map(|colour| BEASTS.iter().map(move |beast| format!("{colour} {beast}"))).collect();
    Rng::new("mail project names", &[&seed.to_le_bytes()]).shuffle(&mut names);
    let index = number as usize % names.len().max(1);
    names.into_iter().nth(index).unwrap_or_default()
}

pub(super) const ITEMS: [&str; 8] =
    ["stone facing", "oak panelling", "glass roof", "survey", "measuring posts", "haulage", "scaffolding", "drainage"];

pub(super) const PARTS: [&str; 8] = [
    "site plan",
    "permit file",
    "floor drawings",
    "load tables",
    "safety notes",
    "colour samples",
    "soil report",
    "cost sheet",
];

pub(super) const TOPICS: [&str; 10] = [
    "entrance hall",
    "north wall",
    "delivery route",
    "parking question",
    "night shifts",
    "storage shed",
    "test run",
    "choice of varnish",
    "name plate",
    "handover",
];

pub(super) const REPLIES: [&str; 8] = [
    "Thank you, that suits us well.",
    "I would rather wait until the drawings are back.",
    "Agreed; please go ahead.",
    "Could we speak about it in the corridor before anything is settled?",
    "I have my doubts, but I will not stand in the way.",
    "That is fine with me as long as the others are told.",
    "Noted, and passed on to the workshop.",
    "Let us do it as we did it in the spring.",
];

pub(super) const SMALL_TALK: [&str; 6] = [
    "The coffee machine on the second floor is working again.",
    "Someone has left a green umbrella in the meeting room.",
    "The lift will be serviced, so please take the stairs.",
    "There is cake in the kitchen for whoever comes by.",
    "The plants by the window need a new home.",
    "Please keep the back gate shut; the neighbour's goat was in the yard again.",
];

pub(super) const NOTICES: [&str; 6] = [
    "House notice",
    "From the front desk",
    "Odds and ends",
    "Around the yard",
    "Reminder to everyone",
    "Lost and found",
];

pub(super) const WHO: [&str; 16] = [
    "The foreman",
    "Our neighbour across the river",
    "The surveyor",
    "Everyone in the drawing office",
    "The youngest apprentice",
    "A visitor from the harbour",
    "The night watch",
    "The carpenters' guild",
    "The clerk of works",
    "My predecessor",
    "The people in the workshop",
    "The carrier",
    "The miller's daughter",
    "A friend of the house",
    "The town council",
    "The gardener",
];

pub(super) const DID: [&str; 16] = [
    "asked about",
    "has looked again at",
    "would like to keep",
    "was not pleased with",
    "has found a better place for",
    "took the measurements of",
    "promised to bring back",
    "has sent us pictures of",
    "wants to hear more about",
    "had a good word for",
    "keeps forgetting",
    "has repaired",
    "is still waiting for",
    "was shown around",
    "made a drawing of",
    "lost the key to",
];

pub(super) const WHAT: [&str; 16] = [
    "the old boat house",
    "the brick kiln",
    "the ladder in the east wing",
    "the pump behind the mill",
    "the wooden models",
    "the gate at the lower meadow",
    "the long table",
    "the slate roof",
    "the copper gutters",
    "the windows towards the orchard",
    "the footbridge",
    "the weather vane",
    "the cellar stairs",
    "the lime pit",
    "the tool shed",
    "the stove in the guard room",
];

pub(super) const ENDS: [&str; 12] = [
    "",
    ", as was to be expected",
    " before the rain set in",
    ", which nobody had asked for",
    " without telling anyone",
    " and left a note",
    ", so we moved the benches",
    " on the way to the market",
    ", much to our relief",
    " while the paint was drying",
    ", for the third time this year",
    " and nobody objected",
];
