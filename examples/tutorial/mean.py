import hopyard as hop

values = [float(line) for line in (hop.dataset_path("numbers") / "x.txt").read_text().split()]
p = hop.params(power=1)
mean = sum(v**p.power for v in values) / len(values)
hop.summary(mean=mean)
print(mean)
