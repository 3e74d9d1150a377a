use std::fmt::Write as _;

/// Rows in the order in which their figures first came.
pub(crate) struct Table {
    columns: usize,
    rows: Vec<(String, Vec<Vec<f64>>)>,
}

impl Table {
    pub(crate) fn new(columns: usize) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Takes a sample of the figure, whose name ends with its unit.
    pub(crate) fn add(&mut self, column: usize, figure: &str, sample: f64) {
        let row = self.rows.iter().position(|(name, _)| name == figure);
        let row = row.unwrap_or_else(|| {
            let samples = vec![Vec::new(); self.columns];
            self.rows.push((figure.into(), samples));
            self.rows.len() - 1
        });
        self.rows[row].1[column].push(sample);
    }

    /// The medians, as Markdown.
    #[allow(clippy::print_stdout, reason = "it is for people to read")]
    pub(crate) fn print(&self) {
        let head = match self.columns {
            1 => "| figure | ours |\n|---|--:|",
            _ => "| figure | ours | reference | ratio |\n|---|--:|--:|--:|",
        };
        println!("\n{head}");
        for (figure, columns) in &self.rows {
            let medians: Vec<_> = columns.iter().map(|samples| median(samples)).collect();
            let mut line = format!("| {figure} |");
            for median in &medians {
                let _ = write!(line, " {} |", median.map_or("-".into(), show));
            }
            if let [ours, reference] = medians[..] {
                let _ = write!(line, " {} |", ratio(ours, reference));
            }
            println!("{line}");
        }
    }
}

fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]))
}

/// Counts in full with their thousands apart, measures to three digits.
fn show(value: f64) -> String {
    let places = match value.abs() {
        size if size.fract() == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut shown = String::new();
    for (at, c) in text.char_indices() {
        let comes_a_group = at < whole && (whole - at) % 3 == 0;
        if comes_a_group && shown.ends_with(|c: char| c.is_ascii_digit()) {
            shown.push(',');
        }
        shown.push(c);
    }
    shown
}

/// Ours to the reference, where that is a number.
fn ratio(ours: Option<f64>, reference: Option<f64>) -> String {
    match (ours, reference) {
        (None, _) | (_, None | Some(0.0)) => "-".into(),
        (Some(0.0), _) => "0".into(),
        (Some(ours), Some(reference)) if ours < reference => {
            format!("1/{:.1}", reference / ours)
        }
        (Some(ours), Some(reference)) => format!("{:.1}", ours / reference),
    }
}
