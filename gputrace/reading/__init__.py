"""Reading traces of any size, ours and other tools', in flat memory.

Start with `recognise.open_trace`: it says what a file is by its content and gives a bounded stream of its bytes.
`packets` frames Perfetto's packets, `fields` looks into one, `trackevents` makes tracks and edges of them; `chrome`
reads events of Chrome's JSON; `torn` makes a whole one of what is left of a file that was cut. What is wrong with a
file is an `InputError` or a note that names the file and the place. It knows no output and no other file than the one
it reads.
"""
