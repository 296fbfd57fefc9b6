//! A mailbox of people who do not exist, about projects that do not exist: seeded, the same everywhere.
//!
//! A few dozen people work on a few dozen projects in small teams. Each project has a kick-off with replies, offers and
//! invoices with amounts, contacts with telephone numbers, weekly reports, and discussions; between them lie mails that
//! hold nothing. Domains end in `.example`, and telephone numbers are of the range that is kept free for fiction.

mod words;

use jiff::ToSpan as _;
use jiff::civil::{Date, DateTime, date};
use serde::{Deserialize, Serialize};

use super::mailbox::Mailbox;
use super::message::Email;
use crate::EnvError;
use crate::rng::Rng;

/// What a generated mailbox is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synthetic {
    /// Decides everything.
    pub seed: u64,
    /// People with an inbox of their own, in one company.
    pub insiders: u32,
    /// People of other companies.
    pub outsiders: u32,
    /// Projects.
    pub projects: u32,
    /// The shortest and longest text of a mail about a project, in characters, roughly.
    pub lengths: (u32, u32),
}

impl Default for Synthetic {
    fn default() -> Self {
        Self { seed: 42, insiders: 28, outsiders: 12, projects: 36, lengths: (500, 3_200) }
    }
}

/// The first day of mail.
const START: Date = date(2031, 1, 6);

/// How many weeks a project's mail spreads over, at least and at most.
const WEEKS: (u64, u64) = (8, 16);

/// Sizes are checked before anything is written, so that whoever is looked up is there.
#[derive(Clone, Debug, Default)]
struct Person {
    first: &'static str,
    name: String,
    address: String,
    company: &'static str,
}

impl Synthetic {
    /// The mailbox.
    ///
    /// # Errors
    /// [`EnvError::Setting`] for sizes outside their range.
    pub fn mailbox(&self) -> Result<Mailbox, EnvError> {
        self.check()?;
        let mut writer = Writer::new(*self);
        for number in 0..self.projects {
            writer.project(number);
        }
        writer.noise();
        let mut emails = writer.emails;
        emails.sort_by(|a, b| a.date.cmp(&b.date).then_with(|| a.message_id.cmp(&b.message_id)));
        Ok(Mailbox::new(emails))
    }

    fn check(&self) -> Result<(), EnvError> {
        let fail = |name, reason: &str| Err(EnvError::Setting { name, reason: reason.to_owned() });
        let names = (words::FIRST_NAMES.len() * words::LAST_NAMES.len()) as u32;
        if !(6..=200).contains(&self.insiders) || self.outsiders < 3 || self.insiders + self.outsiders > names {
            return fail("insiders", "a mailbox has 6 to 200 insiders and at least 3 outsiders");
        }
        if !(1..=words::project_names()).contains(&self.projects) {
            return fail("projects", "a mailbox has at least one project, and no more than there are names for");
        }
        if self.lengths.0 > self.lengths.1 || self.lengths.1 > 4_000 {
            return fail("lengths", "texts may have up to 4000 characters, and the shortest comes first");
        }
        Ok(())
    }
}

struct Writer {
    config: Synthetic,
    rng: Rng,
    insiders: Vec<Person>,
    outsiders: Vec<Person>,
    emails: Vec<Email>,
}

/// A project while its mail is being written.
struct Project {
    name: String,
    team: Vec<usize>,
    partners: Vec<usize>,
    start: DateTime,
    weeks: u64,
}

/// Who a mail goes to.
struct Route<'a> {
    from: &'a Person,
    to: Vec<&'a Person>,
    cc: Vec<&'a Person>,
}

impl Writer {
    fn new(config: Synthetic) -> Self {
        let mut rng = Rng::new("mail synthetic", &[&config.seed.to_le_bytes()]);
        let mut names: Vec<(&str, &str)> = words::FIRST_NAMES
            .iter()
            .flat_map(|&first| words::LAST_NAMES.iter().map(move |&last| (first, last)))
            .collect();
        rng.shuffle(&mut names);
        let mut people = names.into_iter();
        let mut take = |count: u32, companies: &'static [(&'static str, &'static str)]| -> Vec<Person> {
            let chosen = people.by_ref().take(count as usize).enumerate();
            chosen
                .map(|(index, (first, last))| {
                    let (company, domain) = companies.get(index % companies.len()).copied().unwrap_or_default();
                    let address = format!("{}.{}@{domain}", first.to_lowercase(), last.to_lowercase());
                    Person { first, name: format!("{first} {last}"), address, company }
                })
                .collect()
        };
        let insiders = take(config.insiders, &words::COMPANY);
        let outsiders = take(config.outsiders, &words::PARTNERS);
        Self { config, rng, insiders, outsiders, emails: Vec::new() }
    }

    fn project(&mut self, number: u32) {
        let size = self.rng.range(4, 7) as usize;
        let team = self.some(self.insiders.len(), size);
        let partners = self.some(self.outsiders.len(), 3);
        let offset = self.rng.range(0, 7 * 30) as i64;
        let project = Project {
            name: words::project_name(self.config.seed, number),
            team,
            partners,
            start: START.at(8, 0, 0, 0).saturating_add(offset.days()),
            weeks: self.rng.range(WEEKS.0, WEEKS.1),
        };
        self.kickoff(&project);
        self.offers(&project);
        self.invoices(&project);
        self.contacts(&project);
        self.reports(&project);
        self.deadlines(&project);
        self.discussions(&project);
    }

    /// An invitation with a date and a time, and some answers to it.
    fn kickoff(&mut self, project: &Project) {
        let when = self.moment(project, 0, 0);
        let day = when.date().saturating_add((self.rng.range(2, 9) as i64).days());
        let time = self.time();
        let fact = format!("The kick-off of {} is on {day} at {time}.", project.name);
        let subject = format!("{}: kick-off", project.name);
        let host = self.member(project, 0);
        let to = self.others(project, &host, 3);
        let cc = self.others(project, &host, 2).into_iter().filter(|person| !same(&to, person)).collect();
        self.thread(project, subject, (host, to, cc), &fact, when, 4);
    }

    /// One offer from each partner: an amount.
    fn offers(&mut self, project: &Project) {
        let item = self.pick(&words::ITEMS);
        for &partner in &project.partners {
            let Some(from) = self.outsiders.get(partner).cloned() else { continue };
            let when = self.moment(project, 1, 3);
            let amount = self.dollars();
            let fact = format!("For the {item} of {} we ask {amount}, all included.", project.name);
            let subject = format!("{}: offer of {}", project.name, from.company);
            let to = self.others(project, &from, 3);
            let cc = self.others(project, &from, 1).into_iter().filter(|person| !same(&to, person)).collect();
            self.thread(project, subject, (from, to, cc), &fact, when, 1);
        }
    }

    fn invoices(&mut self, project: &Project) {
        for number in 1..=self.rng.range(2, 4) {
            let partner = project.partners.get(number as usize % project.partners.len().max(1)).copied().unwrap_or(0);
            let Some(from) = self.outsiders.get(partner).cloned() else { continue };
            let when = self.moment(project, 3, project.weeks);
            let due = when.date().saturating_add((self.rng.range(14, 45) as i64).days());
            let amount = self.dollars();
            let fact = format!("The invoice over {amount} is attached. Please pay it by {}.", worded(due));
            let subject = format!("{}: invoice {}{number:02}", project.name, self.rng.range(10, 98));
            let to = self.others(project, &from, 2);
            self.thread(project, subject, (from, to, Vec::new()), &fact, when, 1);
        }
    }

    /// Someone's telephone number.
    fn contacts(&mut self, project: &Project) {
        for _ in 0..self.rng.range(1, 3) {
            let from = self.member(project, 0);
            let new = self.pick_person(false);
            let when = self.moment(project, 1, project.weeks);
            let phone = self.phone();
            let fact = format!(
                "{} of {} now speaks for them on {}; the number is {phone}.",
                new.name, new.company, project.name
            );
            let subject = format!("{}: contact {}", project.name, new.name);
            let to = self.others(project, &from, 4);
            self.thread(project, subject, (from, to, Vec::new()), &fact, when, 1);
        }
    }

    /// A report every week from the same person, which makes long series.
    fn reports(&mut self, project: &Project) {
        let from = self.member(project, 1);
        for week in 1..=project.weeks {
            let when = self.moment(project, week - 1, week - 1);
            let spent = self.dollars();
            let fact = format!("Spent on {} this week: {spent}.", project.name);
            let subject = format!("{}: report of week {week}", project.name);
            let to = self.others(project, &from, 4);
            self.thread(project, subject, (from.clone(), to, Vec::new()), &fact, when, 1);
        }
    }

    fn deadlines(&mut self, project: &Project) {
        for _ in 0..self.rng.range(1, 3) {
            let part = self.pick(&words::PARTS);
            let from = self.member(project, 2);
            let when = self.moment(project, 1, project.weeks);
            let day = when.date().saturating_add((self.rng.range(5, 40) as i64).days());
            let fact = format!("The {part} must be ready on {}.", worded(day));
            let subject = format!("{}: {part}", project.name);
            let to = self.others(project, &from, 2);
            let cc = self.others(project, &from, 2).into_iter().filter(|person| !same(&to, person)).collect();
            self.thread(project, subject, (from, to, cc), &fact, when, 2);
        }
    }

    /// Threads without a fact that has a form.
    fn discussions(&mut self, project: &Project) {
        for _ in 0..self.rng.range(2, 4) {
            let part = self.pick(&words::TOPICS);
            let from = self.member(project, 3);
            let when = self.moment(project, 1, project.weeks);
            let subject = format!("{}: {part}", project.name);
            let fact = format!("What do you think about the {part}?");
            let to = self.others(project, &from, 3);
            let cc = self.others(project, &from, 1).into_iter().filter(|person| !same(&to, person)).collect();
            self.thread(project, subject, (from, to, cc), &fact, when, 6);
        }
    }

    /// A mail and up to `replies` less one answers of its recipients.
    fn thread(
        &mut self,
        project: &Project,
        subject: String,
        route: (Person, Vec<Person>, Vec<Person>),
        fact: &str,
        when: DateTime,
        most: u64,
    ) {
        let (from, to, cc) = route;
        let text = self.text(&to, &from, fact, Some(project));
        let first = Route { from: &from, to: to.iter().collect(), cc: cc.iter().collect() };
        self.send(subject.clone(), &first, text, when);
        let mut when = when;
        for _ in 1..self.rng.range(1, most) {
            when = when
                .saturating_add((self.rng.range(1, 30) as i64).hours())
                .saturating_add((self.rng.range(1, 59) as i64).minutes());
            let Some(author) = self.rng.pick(&to).cloned() else { return };
            let copied = if self.rng.below(3) == 0 { Vec::new() } else { self.others(project, &author, 2) };
            let copied: Vec<Person> = copied.into_iter().filter(|person| person.address != from.address).collect();
            let line = self.pick(&words::REPLIES);
            let text = self.text(std::slice::from_ref(&from), &author, line, None);
            let route = Route { from: &author, to: vec![&from], cc: copied.iter().collect() };
            self.send(format!("Re: {subject}"), &route, text, when);
        }
    }

    /// Mails about nothing in particular.
    fn noise(&mut self) {
        for number in 0..self.config.projects * 3 {
            let from = self.pick_person(true);
            let people = self.some(self.insiders.len(), 8);
            let to: Vec<Person> = people.into_iter().filter_map(|index| self.insiders.get(index).cloned()).collect();
            let topic = self.pick(&words::SMALL_TALK);
            let when = START.at(9, 0, 0, 0).saturating_add((self.rng.range(0, 300 * 24) as i64).hours());
            let text = self.text(&to, &from, topic, None);
            let subject = format!("{} ({})", self.pick(&words::NOTICES), number + 1);
            let route = Route {
                from: &from,
                to: to.iter().filter(|person| person.address != from.address).collect(),
                cc: Vec::new(),
            };
            self.send(subject, &route, text, when);
        }
    }

    fn send(&mut self, subject: String, route: &Route<'_>, body: String, when: DateTime) {
        let addresses = |people: &[&Person]| people.iter().map(|person| person.address.clone()).collect::<Vec<_>>();
        let number = self.emails.len();
        self.emails.push(Email {
            message_id: format!("<{:08x}.{number}@{}>", self.rng.below(1 << 32), words::DOMAIN),
            date: when.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            subject,
            from_address: route.from.address.clone(),
            to_addresses: addresses(&route.to),
            cc_addresses: addresses(&route.cc),
            bcc_addresses: Vec::new(),
            body,
            file_name: None,
        });
    }

    /// A letter around a fact, which stands somewhere in it.
    fn text(&mut self, to: &[Person], from: &Person, fact: &str, project: Option<&Project>) -> String {
        let greeting = match to {
            [one] => format!("Dear {},", one.first),
            _ => "Dear all,".to_owned(),
        };
        let length = match project {
            Some(_) => self.rng.range(self.config.lengths.0.into(), self.config.lengths.1.into()) as usize,
            None => self.rng.range(80, 400) as usize,
        };
        let mut paragraphs = vec![String::new()];
        let mut size = 0;
        while size < length {
            let sentence = self.sentence();
            size += sentence.len() + 1;
            if self.rng.below(6) == 0 {
                paragraphs.push(String::new());
            }
            if let Some(last) = paragraphs.last_mut() {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(&sentence);
            }
        }
        paragraphs.retain(|paragraph| !paragraph.is_empty());
        let place = self.rng.below(paragraphs.len() as u64 + 1) as usize;
        paragraphs.insert(place, fact.to_owned());
        format!("{greeting}\n\n{}\n\nRegards,\n{}\n{}", paragraphs.join("\n\n"), from.name, from.company)
    }

    fn sentence(&mut self) -> String {
        let (who, did, what) = (self.pick(&words::WHO), self.pick(&words::DID), self.pick(&words::WHAT));
        let end = self.pick(&words::ENDS);
        format!("{who} {did} {what}{end}.")
    }

    /// A moment in a week of a project, the first to the last one given.
    fn moment(&mut self, project: &Project, first: u64, last: u64) -> DateTime {
        let week = self.rng.range(first, last.max(first));
        let (day, minute) = (self.rng.range(0, 4), self.rng.range(0, 9 * 60));
        let days = (week * 7 + day) as i64;
        project.start.saturating_add(days.days()).saturating_add((minute as i64).minutes())
    }

    fn time(&mut self) -> String {
        let (hour, quarter) = (self.rng.range(8, 17), self.rng.below(4) * 15);
        let half = if hour < 12 { "am" } else { "pm" };
        format!("{}:{quarter:02} {half}", if hour > 12 { hour - 12 } else { hour })
    }

    /// Such as `$4,310` or `$12,075.50`.
    fn dollars(&mut self) -> String {
        let whole = self.rng.range(120, 48_000);
        let grouped = if whole < 1_000 { whole.to_string() } else { format!("{},{:03}", whole / 1_000, whole % 1_000) };
        match self.rng.below(3) {
            0 => format!("${grouped}.{:02}", self.rng.range(1, 99)),
            _ => format!("${grouped}"),
        }
    }

    /// Of the numbers 555-0100 to 555-0199, with an area code.
    fn phone(&mut self) -> String {
        format!("({}) 555-01{:02}", self.rng.range(200, 989), self.rng.below(100))
    }

    /// The team's member of that rank.
    fn member(&self, project: &Project, rank: usize) -> Person {
        let index = project.team.get(rank % project.team.len().max(1)).copied().unwrap_or(0);
        self.insiders.get(index).cloned().unwrap_or_default()
    }

    /// Some of the team other than one person.
    fn others(&mut self, project: &Project, not: &Person, most: usize) -> Vec<Person> {
        let mut team: Vec<Person> =
            project.team.iter().filter_map(|&index| self.insiders.get(index).cloned()).collect();
        team.retain(|person| person.address != not.address);
        self.rng.shuffle(&mut team);
        team.truncate(most);
        team
    }

    fn pick_person(&mut self, inside: bool) -> Person {
        let people = if inside { &self.insiders } else { &self.outsiders };
        let index = self.rng.below(people.len() as u64) as usize;
        people.get(index).cloned().unwrap_or_default()
    }

    fn pick(&mut self, words: &[&'static str]) -> &'static str {
        self.rng.pick(words).copied().unwrap_or_default()
    }

    /// Some different numbers below a bound.
    fn some(&mut self, bound: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..bound).collect();
        self.rng.shuffle(&mut all);
        all.truncate(count);
        all
    }
}

fn same(people: &[Person], person: &Person) -> bool {
    people.iter().any(|other| other.address == person.address)
}

/// `May 14, 2031`.
fn worded(day: Date) -> String {
    day.strftime("%B %-d, %Y").to_string()
}
